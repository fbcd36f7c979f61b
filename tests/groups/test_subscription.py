"""Tests that topics are parsed from a consumer's subscription, and that invalid bytes result in no topics."""

from __future__ import annotations

from struct import pack

from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.groups.classic.subscription import read_assignment, subscribed_topics


def subscription(topics: list[str], version: int = 3, rest: bytes = b"\xff\xff\xff\xff") -> bytes:
    """A subscription as a consumer encodes it; `rest` is user data and the fields of later versions."""
    named = b"".join(pack(">h", len(topic.encode())) + topic.encode() for topic in topics)
    return pack(">hi", version, len(topics)) + named + rest


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(max_size=20), max_size=8), st.integers(0, 9), st.binary(max_size=20))
def test_topics_of_any_version_are_read(topics: list[str], version: int, rest: bytes) -> None:
    clean = [topic.encode("utf-8", "replace").decode() for topic in topics]
    assert subscribed_topics([subscription(clean, version, rest), subscription(["other"])]) == {*clean, "other"}


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_other_bytes_are_refused(data: bytes) -> None:
    topics = subscribed_topics([data])
    assert topics is None or all(isinstance(topic, str) for topic in topics)


def test_truncated_and_inconsistent_subscriptions_give_no_topics() -> None:
    whole = subscription(["topic"], rest=b"")
    assert all(subscribed_topics([whole[:size]]) is None for size in range(len(whole)))
    assert subscribed_topics([pack(">hi", 0, 2**31 - 1) + whole]) is None
    assert subscribed_topics([pack(">hi", 0, -1)]) is None
    assert subscribed_topics([pack(">hih", 0, 1, -5)]) is None
    assert subscribed_topics([pack(">hih", 0, 1, 1) + b"\xff"]) is None


def test_a_topic_may_occur_more_than_once() -> None:
    """The list of owned partitions may be in any order; all of its partitions count when the group migrates."""
    row = pack(">h", 1) + b"t" + pack(">ii", 1, 0) + pack(">h", 1) + b"u" + pack(">ii", 1, 5)
    again = pack(">h", 1) + b"t" + pack(">iii", 2, 3, 1)
    assert read_assignment(pack(">hi", 0, 3) + row + again + pack(">i", -1)).partitions == {"t": [0, 3, 1], "u": [5]}
