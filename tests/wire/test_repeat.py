"""A Produce that repeats the one before is read as the parser reads it, and so is one that only seems to."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import MalformedFrame
from kpybroker.wire.message import build, parser
from kpybroker.wire.repeat import Repeating
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


def read(parse: Any, frame: bytes) -> Any:
    """What a parser makes of it, as bytes again, for a request that is handed out twice is the same object."""
    try:
        return build(parse(memoryview(frame), len(HEADER)), VERSION)
    except MalformedFrame:
        return None


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(requests, mutations), max_size=6))
def test_any_sequence_of_frames_is_read_as_the_parser_reads_it(frames: list[tuple[Request, Any]]) -> None:
    repeating = Repeating(parser(Request, VERSION))
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

    repeating = Repeating(parse)
    for size in (10, 120, 126, 10, 20_000):
        request = repeating(memoryview(HEADER + build(a_request(["a"], 1, 1, b"x" * size), VERSION)), len(HEADER))
        assert bytes(request.topic_data[0].partition_data[0].records) == b"x" * size
    assert len(parsed) == 1
