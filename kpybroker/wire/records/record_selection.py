"""Selects the records of stored batches that match a filter, and makes batches of them that keep their offsets.

Most records are never parsed: if every matching record contains one of some byte sequences (`RecordFilter.needles`),
only the records that contain one of these are parsed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records.batch import Batch, read_head, read_varint
from kpybroker.wire.records.record_filter import RecordFilter
from kpybroker.wire.records.record_removal import thinned

PARSED_AT_ONCE = 250
"""How many records are parsed between two yields of `select`, which takes about half a millisecond."""
WALKED_A_PARSED = 10
"""Finding the end of this many records takes as long as parsing one."""


class Selection(NamedTuple):
    """The matching records of a batch: their bytes, their number, and the largest of their timestamps. `parsed` is the
    number of records that were parsed."""

    body: bytes
    records: int
    max_timestamp: int
    parsed: int


def select(batch: Batch, plain: bytes, begin: int, end: int, by: RecordFilter) -> Iterator[Selection | None]:
    """Yield None after each portion of the work, and the selection at last. The decompressed records of the batch are
    in `plain` from `begin` to `end`. Raises KafkaError: INVALID_RECORD."""
    runs: list[bytes] = []
    found, parsed, max_timestamp, portion = 0, 0, -1, 0
    candidates = _all(plain, begin, end) if by.needles is None else _holding(plain, begin, end, by.needles)
    for at, walked in candidates:
        record, after = read_head(batch, plain, at)
        if by.matches(record):
            runs.append(plain[at:after])
            found += 1
            max_timestamp = max(max_timestamp, record.timestamp)
        parsed += 1
        portion += 1 + walked // WALKED_A_PARSED
        if portion >= PARSED_AT_ONCE:
            portion = 0
            yield None
    yield Selection(b"".join(runs), found, max_timestamp, parsed)


def _all(plain: bytes, at: int, end: int) -> Iterator[tuple[int, int]]:
    while at < end:
        begin, at = at, _end_at(plain, at, end)
        yield begin, 0


def _holding(plain: bytes, at: int, end: int, needles: tuple[bytes, ...]) -> Iterator[tuple[int, int]]:
    """The positions of the records that contain a needle, each with the number of records that were skipped before
    it."""
    places = [plain.find(needle, at, end) for needle in needles]
    walked = 0
    while True:
        place = min((each for each in places if each >= 0), default=-1)
        if place < 0:
            return
        begin = at
        while True:
            at = _end_at(plain, begin, end)
            if place < at:
                break
            begin = at
            walked += 1
        yield begin, walked
        walked = 0
        for number, each in enumerate(places):
            if 0 <= each < at:
                places[number] = plain.find(needles[number], at, end)


def _end_at(plain: bytes, at: int, end: int) -> int:
    """The position after the record that begins at `at`."""
    try:
        size, at = read_varint(plain, at)
    except IndexError as error:
        raise _cut_off() from error
    if size <= 0 or at + size > end:
        raise _cut_off()
    return at + size


def _cut_off() -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, "a record is longer than its batch")


def narrowed(batch: Batch, selection: Selection) -> bytes:
    """The batch with only the selected records, of which there is at least one. They keep their offsets and
    timestamps, and the batch keeps its first and last offset, its producer and its codec."""
    newest = batch.max_timestamp if batch.log_append_time else selection.max_timestamp
    return thinned(batch, selection.body, selection.records, newest, None)
