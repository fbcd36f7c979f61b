"""Laws of plain values: they contain the whole message, and what a request names is found in every version."""

from __future__ import annotations

from random import Random

import pytest

from kpybroker.wire import plain
from kpybroker.wire.api import API, Audience, by_name
from kpybroker.wire.codec.codec import build
from kpybroker.wire.codec.layout import layout
from tests.wire.messages import MESSAGES, VERSIONS
from tests.wire.values import arbitrary


@pytest.mark.parametrize("seed", range(3))
def test_plain_values_contain_the_whole_message(seed: int) -> None:
    random = Random(seed)
    for name, version in VERSIONS:
        cls = MESSAGES[name]
        message = arbitrary(layout(cls, version), random)
        again = plain.from_plain(cls, version, plain.as_plain(message, version))
        assert build(again, version) == build(message, version), (name, version)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"topics": [{"nam": "t"}]}, r"metadata v9.topics\[0\] has no field 'nam'; did you mean name\?"),
        ({"topics": "t"}, "metadata v9.topics: str instead of a list"),
        ({"topics": ["t"]}, r"metadata v9.topics\[0\]: str instead of a dict of fields"),
        ({"topics": [{"topic_id": "t"}]}, "has no field 'topic_id'"),
    ],
)
def test_wrong_fields_are_refused(fields: plain.Plain, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        plain.from_plain(by_name["Metadata"].request, 9, fields)


@pytest.mark.parametrize("text", ["", "t", "A" * 21, "A" * 23, "+" * 22, "é" * 22])
def test_a_wrong_uuid_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a uuid"):
        plain.uuid_of(text)


TOPIC_ID = plain.uuid_text(bytes(range(16)))


@pytest.mark.parametrize(
    ("api", "version", "fields", "topics", "groups"),
    [
        ("Produce", 12, {"topic_data": [{"name": "a"}, {"name": "b"}, {"name": "a"}]}, ["a", "b"], []),
        ("Produce", 13, {"topic_data": [{"topic_id": TOPIC_ID}]}, [TOPIC_ID], []),
        ("Metadata", 12, {"topics": [{"name": None, "topic_id": TOPIC_ID}, {"name": "a"}]}, [TOPIC_ID, "a"], []),
        ("Metadata", 12, {"topics": None}, [], []),
        ("DeleteTopics", 5, {"topic_names": ["a"]}, ["a"], []),
        ("OffsetFetch", 8, {"groups": [{"group_id": "g", "topics": [{"name": "a"}]}]}, ["a"], ["g"]),
        ("OffsetFetch", 7, {"group_id": "g", "topics": [{"name": "a"}]}, ["a"], ["g"]),
        ("AddPartitionsToTxn", 4, {"transactions": [{"topics": [{"name": "a"}]}]}, ["a"], []),
        ("ConsumerGroupHeartbeat", 0, {"group_id": "g", "subscribed_topic_names": ["a"]}, ["a"], ["g"]),
        ("FindCoordinator", 3, {"key": "g", "key_type": 0}, [], ["g"]),
        ("FindCoordinator", 4, {"coordinator_keys": ["g", "h"], "key_type": 0}, [], ["g", "h"]),
        ("FindCoordinator", 4, {"coordinator_keys": ["id"], "key_type": 1}, [], []),
        ("DeleteGroups", 2, {"groups_names": ["g"]}, [], ["g"]),
        ("DescribeGroups", 5, {"groups": ["g"]}, [], ["g"]),
    ],
)
def test_topics_and_groups_are_found(
    api: str, version: int, fields: plain.Plain, topics: list[str], groups: list[str]
) -> None:
    row = by_name[api]
    given = plain.as_plain(plain.from_plain(row.request, version, fields), version)
    assert [topic for topic, _ in plain.topics_in(given)] == topics
    assert [topic for topic, is_id in plain.topics_in(given) if is_id] == [each for each in topics if each == TOPIC_ID]
    assert plain.groups_in(given) == groups
    assert plain.names_topics(row) >= bool(topics)
    assert plain.names_groups(row) >= bool(groups)


def test_what_requests_cannot_name() -> None:
    assert not plain.names_topics(by_name["JoinGroup"])
    assert not plain.names_groups(by_name["Produce"])


def test_every_error_code_is_found() -> None:
    """In every response of a client's API that can have an error."""
    without = set()
    for api in API:
        if api.audience is Audience.CLIENT:
            random = Random(api.key)
            found = set()
            for _ in range(20):
                fields = plain.as_plain(arbitrary(layout(api.response, api.max), random), api.max)
                found.update(plain.errors_in(fields))
            if not found:
                without.add(api.name)
    assert not without
    assert plain.errors_in({"a": [{"error_code": 3}, {"error_code": 0}, {"error_code": 3}]}) == [
        "UNKNOWN_TOPIC_OR_PARTITION"
    ]
    assert plain.errors_in({"error_code": 12345}) == ["error 12345"]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ({"topics": [{"name": "t", "partitions": [1, 2]}]}, [(("t", False), {1, 2})]),
        ({"topics": [{"topic_id": TOPIC_ID, "partition_indexes": [3]}]}, [((TOPIC_ID, True), {3})]),
        ({"topic_data": [{"name": "t", "partition_data": [{"index": 4}]}]}, [(("t", False), {4})]),
        ({"groups": [{"topics": [{"topic": "t", "partitions": [{"partition": 5}]}]}]}, [(("t", False), {5})]),
        ({"topic_names": ["t"]}, [(("t", False), set())]),
    ],
)
def test_the_partitions_of_each_topic_are_found(
    rows: plain.Plain, found: list[tuple[tuple[str, bool], set[int]]]
) -> None:
    assert list(plain.partitions_in(rows)) == found
