"""A request that repeats an earlier one is parsed correctly, and so is a request that is only similar to it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import MalformedFrame
from kpybroker.wire.codec.codec import build, parser
from kpybroker.wire.request_cache import LEARNT_BYTES, RepeatingFetch, RepeatingProduce
from kpybroker.wire.response_templates import MARK, SHORT_MARK
from kpybroker.wire.rpc import fetch
from kpybroker.wire.rpc.produce import PartitionProduceData, Request, TopicProduceData

VERSION = 12
HEADER = b"header"


def a_request(topics: list[str], partitions: int, acks: int, records: bytes | None) -> Request:
    data = [
        TopicProduceData(
            name=name, partition_data=[PartitionProduceData(index=i, records=records) for i in range(partitions)]
        )
        for name in topics
    ]
    return Request(acks=acks, timeout_ms=1000, topic_data=data)


requests = st.builds(
    a_request,
    st.sampled_from([["a"], ["b"], ["a", "b"], []]),
    st.integers(1, 2),
    st.sampled_from([1, -1]),
    st.none() | st.integers(0, 300).map(lambda size: b"\0" * size) | st.binary(max_size=40),
)
mutations = st.none() | st.tuples(st.integers(0, 400), st.integers(0, 255))


def read(parse: Any, frame: bytes, version: int = VERSION) -> Any:
    """The request that a parser returns, encoded again, because the parser may return one object several times."""
    try:
        return build(parse(memoryview(frame), len(HEADER)), version)
    except MalformedFrame:
        return None


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(requests, mutations), max_size=6))
def test_any_sequence_of_frames_is_parsed_correctly(frames: list[tuple[Request, Any]]) -> None:
    repeating = RepeatingProduce(parser(Request, VERSION))
    for request, mutation in frames:
        frame = bytearray(HEADER + build(request, VERSION))
        if mutation is not None:
            at, value = mutation
            frame[max(at % len(frame), len(HEADER))] = value
        assert read(repeating, bytes(frame)) == read(parser(Request, VERSION), bytes(frame))


def test_a_repeated_frame_is_not_parsed_again() -> None:
    parsed = []

    def parse(frame: Any, at: int) -> Any:
        parsed.append(1)
        return parser(Request, VERSION)(frame, at)

    repeating = RepeatingProduce(parse)
    for size in (10, 120, 126, 10, 20_000):
        request = repeating(memoryview(HEADER + build(a_request(["a"], 1, 1, b"x" * size), VERSION)), len(HEADER))
        assert bytes(request.topic_data[0].partition_data[0].records) == b"x" * size
    assert len(parsed) == 1


def a_fetch(topics: int, partitions: int, session: tuple[int, int], offset: int, rack: str) -> fetch.Request:
    wanted = [fetch.FetchPartition(partition=i, fetch_offset=offset, partition_max_bytes=9) for i in range(partitions)]
    asked = [fetch.FetchTopic(topic="t", topic_id=bytes([number]) * 16, partitions=wanted) for number in range(topics)]
    session_id, session_epoch = session
    return fetch.Request(session_id=session_id, session_epoch=session_epoch, topics=asked, rack_id=rack)


numbers32 = st.sampled_from([0, 1, -1, 2**31 - 1, SHORT_MARK])
fetches = st.builds(
    a_fetch,
    st.integers(0, 2),
    st.integers(1, 2),
    st.tuples(numbers32, numbers32),
    st.sampled_from([0, 7, 2**40, MARK]),
    st.sampled_from(["", "r"]),
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.sampled_from([12, 13, 15, 17, 18]), st.lists(st.tuples(fetches, mutations), max_size=8))
def test_any_sequence_of_fetches_is_parsed_correctly(version: int, frames: list[tuple[fetch.Request, Any]]) -> None:
    repeating = RepeatingFetch(parser(fetch.Request, version), version)
    for request, mutation in frames:
        frame = bytearray(HEADER + build(request, version))
        if mutation is not None:
            at, value = mutation
            frame[max(at % len(frame), len(HEADER))] = value
        plain = read(parser(fetch.Request, version), bytes(frame), version)
        assert read(repeating, bytes(frame), version) == plain


def test_a_repeated_fetch_is_not_parsed_again() -> None:
    parsed = []

    def parse(frame: Any, at: int) -> Any:
        parsed.append(1)
        return parser(fetch.Request, 13)(frame, at)

    repeating = RepeatingFetch(parse, 13)
    for epoch, offset in enumerate((0, 5, 2**50), 1):
        frame = memoryview(HEADER + build(a_fetch(1, 1, (3, epoch), offset, ""), 13))
        request = repeating(frame, len(HEADER))
        assert (request.session_epoch, request.topics[0].partitions[0].fetch_offset) == (epoch, offset)
    assert len(parsed) == 1


def test_only_a_frame_without_tagged_fields_at_its_end_is_a_repetition() -> None:
    plain = parser(Request, VERSION)
    repeating = RepeatingProduce(parser(Request, VERSION))
    frame = HEADER + build(a_request(["a"], 1, 1, b"x" * 200), VERSION)
    assert read(repeating, frame) == read(plain, frame)
    for at in (1, 2, 3):
        changed = bytearray(frame)
        changed[-at] = 1
        assert read(plain, bytes(changed)) is None
        assert read(repeating, bytes(changed)) is None


def test_long_requests_are_not_cached() -> None:
    parsed = []

    def parse(frame: Any, at: int) -> Any:
        parsed.append(1)
        return parser(Request, VERSION)(frame, at)

    repeating = RepeatingProduce(parse)
    for _ in range(3):
        repeating(memoryview(HEADER + build(a_request(["a" * LEARNT_BYTES], 1, 1, b"x" * 200), VERSION)), len(HEADER))
    assert len(parsed) == 3
