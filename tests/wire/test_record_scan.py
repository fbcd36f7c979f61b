"""The scan of records returns the same results as a full decoder, and refuses the same batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records.batch import HEADER_BYTES, Batch, Record, encode_batch, put_varint, read_records
from kpybroker.wire.records.decompressed import PIECE_BYTES
from kpybroker.wire.records.large_records import SLICE_HEADERS
from kpybroker.wire.records.record_scan import BLAMED_LIMIT, SLICE_RECORDS, Walk, walk, walk_through
from kpybroker.wire.records.record_search import TimeWalk
from kpybroker.wire.records.small_batches import are_sound, is_sole_record

pytestmark = pytest.mark.slow

EVER = 1 << 64
sizes = st.sampled_from([0, 1, 62, 63, 64, 8191, 8192]) | st.integers(0, 300)
blobs = st.none() | st.builds(bytes, sizes)
headers = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3).map(tuple)
times = st.integers(0, 300) | st.sampled_from([8191, 8192, 1 << 20, 1 << 40])
records = st.lists(st.builds(Record, st.just(0), times, blobs, blobs, headers), min_size=1, max_size=8)
some = settings(max_examples=100, deadline=None)


def batch_of(of: Sequence[Record]) -> Batch:
    return Batch(memoryview(encode_batch(of)))


def walked(batch: Batch, earliest: int = -EVER, latest: int = EVER) -> Walk:
    return walk(bytes(batch.view[HEADER_BYTES:]), batch.record_count, earliest, latest)


def as_read(batch: Batch, earliest: int, latest: int) -> Walk:
    """The expected results of a scan, computed from the decoded records. Raises KafkaError."""
    found = Walk(earliest, latest)
    for index, record in enumerate(read_records(batch)):
        if record.offset != index:
            raise KafkaError(ErrorCode.INVALID_RECORD)
        delta = record.timestamp - batch.base_timestamp
        found.newest = max(found.newest, delta)
        if record.key is None and len(found.without_key) < BLAMED_LIMIT:
            found.without_key.append(index)
        if not earliest <= delta <= latest:
            found.out_of_time.append(index)
        found.headers += len(record.headers)
        found.seen += 1
    return found


@given(records, st.integers(-10, 300), st.integers(-10, 300))
@some
def test_the_scan_finds_the_same_as_reading(of: list[Record], earliest: int, latest: int) -> None:
    batch = batch_of(of)
    assert walked(batch, earliest, latest) == as_read(batch, earliest, latest)


def test_offsets_of_every_width() -> None:
    batch = batch_of([Record(0, 7, b"k" if number % 3 else None, b"v") for number in range(9000)])
    found = walked(batch)
    assert found == as_read(batch, -EVER, EVER)
    assert len(found.without_key) == BLAMED_LIMIT


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
        if error.message == "a header key is not UTF-8":
            return  # the scan does not examine the contents of keys, values and headers
        with pytest.raises(KafkaError) as refusal:
            walked(batch)
        assert refusal.value.code == ErrorCode.INVALID_RECORD
    else:
        assert walked(batch) == expected


@given(st.binary(max_size=40), st.integers(1, 4))
@some
def test_any_bytes_are_scanned_or_refused(plain: bytes, count: int) -> None:
    with contextlib.suppress(KafkaError):
        walk(plain, count, -EVER, EVER)


@pytest.mark.parametrize(
    ("count", "text"), [(1, "10 bytes after the last record"), (3, "fewer than 3 records in the batch")]
)
def test_the_count_is_the_number_of_records(count: int, text: str) -> None:
    batch = batch_of([Record(0, 0, b"k", b"v" * 2)] * 2)
    batch.record_count = count
    with pytest.raises(KafkaError, match=text):
        walked(batch)


def test_offsets_must_be_consecutive() -> None:
    body = b"".join(bytes(batch_of([Record(0, 0, b"k", b"v")]).view[HEADER_BYTES:]) for _ in range(2))
    with pytest.raises(KafkaError, match="record 1 does not have the next offset"):
        walk(body, 2, -EVER, EVER)


@given(records, st.integers(1, 40))
@some
def test_a_scan_in_pieces_finds_the_same(of: list[Record], size: int) -> None:
    """This holds even if a record is larger than any piece."""
    batch = batch_of(of)
    body = bytes(batch.view[HEADER_BYTES:])
    found = Walk(-EVER, EVER)
    for _ in walk_through(found, (body[at : at + size] for at in range(0, len(body), size)), batch.record_count):
        pass
    assert found == walked(batch)


large = st.sampled_from([70_000, 200_000])


@given(
    large, large, st.sampled_from([1000, 65_536, 100_000]), st.integers(0, 3000), st.none() | st.integers(0, 400_000)
)
@settings(max_examples=60, deadline=None)
def test_large_records_are_scanned_field_by_field(key: int, value: int, size: int, names: int, cut: int | None) -> None:
    of = [
        Record(0, 5, b"k", b"v"),
        Record(0, 9, bytes(key), bytes(value), (("name", b"x" * 30),) * names),
        Record(0, 7, None, bytes(value)),
        Record(0, 8, b"k", None),
    ]
    batch = batch_of(of)
    body = bytes(batch.view[HEADER_BYTES:])
    if cut is not None:
        body = body[: min(cut, len(body) - 1)]
    found = Walk(0, 3)
    work = walk_through(found, (body[at : at + size] for at in range(0, len(body), size)), batch.record_count)
    if cut is None:
        for _ in work:
            pass
        assert (found.seen, found.newest, found.without_key, found.out_of_time) == (4, 4, [2], [1])
        return
    with pytest.raises(KafkaError) as refusal:
        for _ in work:
            pass
    assert refusal.value.code == ErrorCode.INVALID_RECORD


def test_a_slice_is_bounded() -> None:
    """A slice is limited by the number of small records, the size of large records, and the number of headers."""
    small = batch_of([Record(0, 7, b"k", b"v")] * (10 * SLICE_RECORDS))
    found = Walk(-EVER, EVER)
    seen = [found.seen for _ in walk_through(found, (bytes(small.view[HEADER_BYTES:]),), 10 * SLICE_RECORDS)]
    assert max(after - before for before, after in zip([0, *seen], [*seen, found.seen], strict=True)) == SLICE_RECORDS
    many = batch_of([Record(0, 7, b"k", b"v", (("", b""),) * (100 * SLICE_RECORDS))])
    body = many.view[HEADER_BYTES:]
    pieces = (body[at : at + 1000] for at in range(0, len(body), 1000))
    assert sum(1 for _ in walk_through(Walk(-EVER, EVER), pieces, 1)) >= 200


@pytest.mark.parametrize(("count", "headers"), [(1, 125_000), (4, 30_000), (1000, 120), (12, SLICE_HEADERS)])
def test_the_headers_of_a_slice_are_bounded(count: int, headers: int) -> None:
    """In one piece, and the check of small batches leaves batches with more headers to the slices."""
    body = bytes(batch_of([Record(0, 7, b"k", b"v", (("", None),) * headers)] * count).view[HEADER_BYTES:])
    found = Walk(8, 8)
    slices = 1 + sum(1 for _ in walk_through(found, (body,), count))
    assert (found.seen, found.headers) == (count, count * headers)
    assert slices >= count * headers // (2 * SLICE_HEADERS)
    assert found.out_of_time == list(range(count)), "each record once"
    checked = Walk(-EVER, EVER)
    end = checked.some(body, 0, count)
    assert checked.headers < 2 * SLICE_HEADERS
    assert (end == len(body)) == (count * headers <= SLICE_HEADERS)
    assert not are_sound(body, count, 0)


@pytest.mark.parametrize("value_bytes", [1000, 70_000, 2_000_000])
def test_a_slice_reads_one_piece(value_bytes: int) -> None:
    count = 4_000_000 // value_bytes
    body = batch_of([Record(0, 7, b"k", bytes(value_bytes))] * count).view[HEADER_BYTES:]
    read: list[int] = []

    def noted() -> Iterator[memoryview]:
        for at in range(0, len(body), PIECE_BYTES):
            read.append(at)
            yield body[at : at + PIECE_BYTES]

    seen = [0, *(len(read) for _ in walk_through(Walk(-EVER, EVER), noted(), count)), len(read)]
    assert {after - before for before, after in pairwise(seen)} <= {0, 1}
    if count <= SLICE_RECORDS:
        assert len(seen) <= len(read) + 2, "and not less"


@given(records, st.integers(0, 8), st.none() | st.integers(0, 300))
@some
def test_a_record_is_found_by_its_time(of: list[Record], since: int, wanted: int | None) -> None:
    batch = batch_of(of)
    looking = TimeWalk(since, wanted)
    for _ in walk_through(looking, (bytes(batch.view[HEADER_BYTES:]),), batch.record_count):
        pass
    deltas = [(index, each.timestamp - batch.base_timestamp) for index, each in enumerate(of) if index >= since]
    if wanted is None:
        expected = max(deltas, key=lambda each: (each[1], -each[0]), default=None)
    else:
        expected = next((each for each in deltas if each[1] >= wanted), None)
    assert looking.found == expected


@given(records.filter(lambda of: len(of) == 1), st.data())
@some
def test_the_shortcut_accepts_nothing_that_the_scan_refuses(of: list[Record], data: Any) -> None:
    body = bytearray(batch_of(of).view[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(0, 2))):
        body[data.draw(st.integers(0, min(len(body), 30) - 1))] = data.draw(st.integers(0, 255))
    if is_sole_record(bytes(body)):
        assert walk(bytes(body), 1, 0, 0).seen == 1


@pytest.mark.parametrize("value", [None, b"", b"v" * 5, b"v" * 63, b"v" * 64, b"v" * 9000, b"v" * 1_100_000])
def test_the_shortcut_recognises_typical_small_batches(value: bytes | None) -> None:
    for key in (None, b"", b"k" * 63):
        batch = batch_of([Record(0, 1_700_000_000_000, key, value)])
        assert is_sole_record(bytes(batch.view[HEADER_BYTES:]))


def record_with(key: bytes, value: bytes, *headers: bytes) -> bytes:
    """A record at offset 0 of these fields, each with its length, as bytes."""
    body = bytearray(b"\0\0\0" + key + value)
    put_varint(body, len(headers) // 2)
    body += b"".join(headers)
    whole = bytearray()
    put_varint(whole, len(body))
    return bytes(whole + body)


NULL, BELOW_NULL = b"\1", b"\3x"
"""The length -1, and -2 with the byte to which half of its zigzag number leads."""


@pytest.mark.parametrize("large", [0, 100_000])
@pytest.mark.parametrize("wrong", range(4))
def test_a_length_below_that_of_null_is_refused(wrong: int, large: int) -> None:
    """In each field, also if it is the last one, and in a record that is scanned field by field."""
    first = bytearray()
    put_varint(first, large)
    fields = [bytes(first) + b"k" * large, NULL, b"\x28" + b"n" * 20, NULL]
    fields[wrong] = BELOW_NULL
    plain = record_with(*fields[: 4 if wrong > 1 else 2])
    assert not are_sound(plain, 1, 0)
    assert not is_sole_record(plain)
    for pieces in ([plain], [plain[at : at + 1000] for at in range(0, len(plain), 1000)], [plain[:-1], plain[-1:]]):
        with pytest.raises(KafkaError) as refusal:
            list(walk_through(Walk(-EVER, EVER), pieces, 1))
        assert refusal.value.code == ErrorCode.INVALID_RECORD


def test_a_length_of_six_bytes_is_refused() -> None:
    for plain in (record_with(b"\x80\x80\x80\x80\x80\0", NULL), record_with(NULL, b"\x80\x80\x80\x80\x80\0")):
        assert not are_sound(plain, 1, 0)
        assert not is_sole_record(plain)
        with pytest.raises(KafkaError):
            walk(plain, 1, -EVER, EVER)


def test_the_shortcut_checks_every_byte() -> None:
    plain = record_with(b"\4kk", b"\4vv")
    assert is_sole_record(plain)
    for at in range(len(plain)):
        for byte in (0, 1, 2, 3, 0x80):
            changed = plain[:at] + bytes([byte]) + plain[at + 1 :]
            if is_sole_record(changed):
                assert walk(changed, 1, 0, 0).seen == 1
