"""The walk sees what reading the records sees, and refuses what it refuses."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.batch import HEADER_BYTES, Batch, Record, encode_batch, read_records
from kpybroker.wire.walking import HEADERS_LIMIT, Walk, walk

EVER = 1 << 64
sizes = st.sampled_from([0, 1, 62, 63, 64, 8191, 8192]) | st.integers(0, 300)
blobs = st.none() | st.builds(bytes, sizes)
headers = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3).map(tuple)
times = st.integers(0, 300) | st.sampled_from([8191, 8192, 1 << 20, 1 << 40])
records = st.lists(st.builds(Record, st.just(0), times, blobs, blobs, headers), min_size=1, max_size=8)
some = settings(max_examples=200, deadline=None)


def batch_of(of: Sequence[Record]) -> Batch:
    return Batch(memoryview(encode_batch(of)))


def walked(batch: Batch, earliest: int = -EVER, latest: int = EVER) -> Walk:
    return walk(bytes(batch.view[HEADER_BYTES:]), batch.record_count, earliest, latest)


def as_read(batch: Batch, earliest: int, latest: int) -> Walk:
    """The same facts, from the records themselves. Raises KafkaError."""
    found = Walk(earliest, latest)
    for index, record in enumerate(read_records(batch)):
        if record.offset != index:
            raise KafkaError(ErrorCode.INVALID_RECORD)
        delta = record.timestamp - batch.base_timestamp
        found.newest = max(found.newest, delta)
        if record.key is None:
            found.without_key.append(index)
        if not earliest <= delta <= latest:
            found.out_of_time.append((index, delta))
        found.headers += len(record.headers)
    return found


@given(records, st.integers(-10, 300), st.integers(-10, 300))
@some
def test_the_walk_sees_what_is_read(of: list[Record], earliest: int, latest: int) -> None:
    batch = batch_of(of)
    assert walked(batch, earliest, latest) == as_read(batch, earliest, latest)


def test_offsets_of_every_width() -> None:
    batch = batch_of([Record(0, 7, b"k" if number % 3 else None, b"v") for number in range(9000)])
    found = walked(batch)
    assert found == as_read(batch, -EVER, EVER)
    assert len(found.without_key) == 3000


@given(records, st.data())
@example([Record(0, 0, b"k", b"v")], None)
@some
def test_mutated_records_are_refused_by_both_or_by_none(of: list[Record], data: Any) -> None:
    batch = batch_of(of)
    body = batch.view[HEADER_BYTES:]
    places = st.integers(0, min(len(body), 40) - 1) | st.integers(0, len(body) - 1)
    for _ in range(0 if data is None else data.draw(st.integers(1, 3))):
        body[data.draw(places)] = data.draw(st.integers(0, 255))
    try:
        expected = as_read(batch, -EVER, EVER)
    except KafkaError as error:
        if error.message == "header key is not UTF-8":
            return  # the walk does not look at what lengths enclose
        with pytest.raises(KafkaError) as refusal:
            walked(batch)
        assert refusal.value.code == ErrorCode.INVALID_RECORD
    else:
        assert walked(batch) == expected


@given(st.binary(max_size=40), st.integers(1, 4))
@some
def test_any_bytes_are_walked_over_or_refused(plain: bytes, count: int) -> None:
    with contextlib.suppress(KafkaError):
        walk(plain, count, -EVER, EVER)


@pytest.mark.parametrize(
    ("count", "text"), [(1, "10 bytes after the last record"), (3, "fewer than 3 records in 20 bytes")]
)
def test_the_count_is_the_number_of_records(count: int, text: str) -> None:
    batch = batch_of([Record(0, 0, b"k", b"v" * 2)] * 2)
    batch.record_count = count
    with pytest.raises(KafkaError, match=text):
        walked(batch)


def test_offsets_follow_one_another() -> None:
    body = b"".join(bytes(batch_of([Record(0, 0, b"k", b"v")]).view[HEADER_BYTES:]) for _ in range(2))
    with pytest.raises(KafkaError, match="record 1 is not at the offset that follows"):
        walk(body, 2, -EVER, EVER)


@pytest.mark.parametrize(("more", "is_taken"), [(0, True), (1, False)])
def test_headers_have_a_limit(more: int, is_taken: bool) -> None:
    each = (("", None),) * 1000
    whole, rest = divmod(HEADERS_LIMIT, 1000)
    assert rest == 0
    batch = batch_of([Record(0, 0, b"k", b"v", each) for _ in range(whole)] + [Record(0, 0, b"k", b"v", each[:more])])
    if is_taken:
        assert walked(batch).headers == HEADERS_LIMIT
    else:
        with pytest.raises(KafkaError) as refusal:
            walked(batch)
        assert refusal.value.code == ErrorCode.MESSAGE_TOO_LARGE
