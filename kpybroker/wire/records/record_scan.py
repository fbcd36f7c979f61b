"""Scans the records of a batch without creating objects for them, in slices.

Layout of a record: length varint (of the bytes after it), attributes int8, timestamp delta varint, offset delta varint,
key and value (a length varint, which is -1 for null, and bytes), number of headers varint, headers (each with a key and
a value as above). Varints are zigzag. Source: KIP-98, "Message format".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records.decompressed import Load, Part
from kpybroker.wire.records.large_records import (
    FIELDS_BYTES,
    SLICE_HEADERS,
    LargeRecord,
    Slices,
    Walking,
    next_piece,
)
from kpybroker.wire.records.record_fields import after_value, long_varint, misfit, record_size, varint, whole_headers

if TYPE_CHECKING:
    from mypy_extensions import i64

SLICE_RECORDS: Final = 1000
"""The most records in one slice, which takes about half a millisecond. It ends early when its records have
SLICE_HEADERS."""
BLAMED_LIMIT: Final = 1000
"""The most records that are named in one error."""
_SHORT_BYTES: Final = 64 << 10
"""A record that spans several pieces is joined up to this size. A larger record is scanned field by field."""
_LATER: Final = -2
"""In place of a position: the record has to be scanned in another slice."""
_FAR: Final = 1 << 62
"""More than any timestamp delta of one byte."""


@dataclass(slots=True)
class Walk:
    """A scan that checks the records of a batch, and collects records with invalid properties by their index.

    The format of each record is checked, and the offsets must be consecutive.
    """

    earliest: int
    latest: int
    """The bounds of the timestamp deltas, in milliseconds."""
    timeless: int | None = None
    """The timestamp delta of records without a timestamp, which is valid regardless of the bounds."""
    seen: int = 0
    newest: int = -(1 << 63)
    """The largest timestamp delta."""
    without_key: list[int] = field(default_factory=list)
    out_of_time: list[int] = field(default_factory=list)
    """The first BLAMED_LIMIT records with a timestamp outside the bounds."""
    needs_keys: bool = True
    """Whether to look for records without a key."""
    headers: int = 0
    """The number of headers in all scanned records."""
    slice_headers: int = 0
    """The number of headers in the records of this slice."""
    headers_limit: int | None = None
    """The most headers. A batch with more is refused."""

    @property
    def is_over(self) -> bool:
        return False

    def note(self, delta: int, offset: int, key_bytes: int) -> None:
        """Check the next record. Raises KafkaError."""
        if offset != self.seen << 1:
            raise _not_next(self.seen)
        self._note_time(self.seen, delta)
        if key_bytes < 0 and self.needs_keys:
            self.blame_key(self.seen)
        self.seen += 1

    def note_headers(self, count: int) -> bool:
        """Count headers. Raises KafkaError: MESSAGE_TOO_LARGE above the limit."""
        self.headers += count
        if self.headers_limit is not None and self.headers > self.headers_limit:
            text = f"a compressed batch with more than {self.headers_limit} headers"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, text)
        return True

    def blame_time(self, index: int, delta: int) -> None:
        blamed = self.out_of_time  # with this record already, if its headers had to wait for another slice
        if delta != self.timeless and len(blamed) < BLAMED_LIMIT and blamed[-1:] != [index]:
            blamed.append(index)

    def blame_key(self, index: int) -> None:
        if len(self.without_key) < BLAMED_LIMIT:
            self.without_key.append(index)

    def some(self, plain: bytes, at: i64, most: i64) -> int:
        # varints of two bytes are decoded in place, because calls are slow in the interpreted build
        total: i64 = len(plain)
        index: i64 = self.seen
        last = index + most
        newest: i64 = -_FAR
        earliest: i64 = max(-_FAR, min(self.earliest, _FAR))
        latest: i64 = max(-_FAR, min(self.latest, _FAR))
        try:
            while index < last and at < total:
                begin = at
                size: i64 = plain[at]
                at += 1
                if size > 0x7F:
                    more: i64 = plain[at] if at < total else 0x80
                    at += 1
                    size = size & 0x7F | more << 7
                    if more > 0x7F:
                        size, at = record_size(plain, begin)
                end = at + (size >> 1)
                if end > total:
                    return begin
                at += 1
                delta: i64 = plain[at]
                if delta < 0x80:
                    at += 1
                    delta = (delta >> 1) ^ -(delta & 1)
                    if delta > newest:
                        newest = delta
                    if not earliest <= delta <= latest:
                        self.blame_time(index, delta)
                else:
                    at = self._long_delta(plain, at, index)
                offset: i64 = plain[at]
                at += 1
                if offset > 0x7F:
                    more = plain[at]
                    at += 1
                    offset = offset & 0x7F | more << 7
                    if more > 0x7F:
                        offset, at = varint(plain, at - 2)
                if offset != index << 1:
                    raise _not_next(index)
                key: i64 = plain[at]
                at += 1
                if key > 0x7F:
                    key, at = varint(plain, at - 1)
                at = after_value(plain, at + (key >> 1))
                at = at + 1 if not plain[at] else self._end_of_headers(plain, at, end)
                # every length has moved `at` forward, so if it is the end here, no field extends beyond its record
                if at != end or size & 1 or (key & 1 and key != 1):  # an odd length is negative
                    if at == _LATER:
                        return begin
                    raise misfit(index)
                if key & 1 and self.needs_keys:
                    self.blame_key(index)
                index += 1
        finally:
            self._end_slice(index, newest)
        return at

    def _end_slice(self, seen: int, newest: int) -> None:
        self.seen = seen
        self.slice_headers = 0
        if newest > max(self.newest, -_FAR):
            self.newest = newest

    def _long_delta(self, plain: bytes, at: int, index: int) -> int:
        """Note a timestamp delta of several bytes, which may have more than 63 bits. Returns the position after it."""
        delta, at = long_varint(plain, at)
        self._note_time(index, (delta >> 1) ^ -(delta & 1))
        return at

    def _note_time(self, index: int, delta: int) -> None:
        if delta > self.newest:
            self.newest = delta
        if not self.earliest <= delta <= self.latest:
            self.blame_time(index, delta)

    def _end_of_headers(self, plain: bytes, at: i64, end: i64) -> i64:
        """The position after the headers of a record. The record is valid only if this is its `end`; -1 if the headers
        are not. _LATER if there are too many for this slice, or for any."""
        count, at = varint(plain, at)
        if count & 1 or count > end - at:
            return -1  # the number is negative, or too large for headers of at least two bytes
        if self.slice_headers >= SLICE_HEADERS or count >> 1 > SLICE_HEADERS:
            return _LATER
        number, at = whole_headers(plain, at, count >> 1)
        if number < count >> 1 or at != end:
            return -1
        self.slice_headers += number
        self.note_headers(number)
        return at


def walk(plain: bytes, count: int, earliest: int, latest: int) -> Walk:
    """Scan all `count` records at once, like `walk_through`. Raises KafkaError."""
    found = Walk(earliest, latest)
    for _ in walk_through(found, (plain,), count):
        pass
    return found


def walk_through(found: Walking, pieces: Iterable[Part | Load], count: int) -> Slices:
    """Scan `count` records in slices. `pieces` yields their bytes, and each piece is released when it has been scanned.

    Raises KafkaError: INVALID_RECORD if the bytes are not these records, and the errors of `pieces`.
    """
    left = iter(pieces)
    plain = b""
    at = 0
    is_first = True
    while True:
        before = found.seen
        try:
            at = found.some(plain, at, min(SLICE_RECORDS, count - before))
        except IndexError as error:
            raise misfit(found.seen) from error
        if found.is_over:
            return
        if found.seen == count:
            break
        size, begin = record_size(plain, at)
        is_whole = begin + (size >> 1) <= len(plain)
        if found.seen - before == SLICE_RECORDS or (is_whole and found.seen > before):
            yield None
        elif is_whole or (size >> 1 > _SHORT_BYTES and len(plain) - at >= FIELDS_BYTES):
            record = LargeRecord(plain, at, left)
            yield from record.walk_over(found)
            plain, at = record.plain, record.at
        else:
            if not is_first:
                yield None
            is_first = False
            more = yield from next_piece(left)
            if more is None:
                raise KafkaError(ErrorCode.INVALID_RECORD, f"fewer than {count} records in the batch")
            plain = bytes(more) if at == len(plain) else b"".join((plain[at:], more))
            at = 0
    yield from _nothing_follows(plain, at, left)


def _nothing_follows(plain: bytes, at: int, left: Iterator[Part | Load]) -> Slices:
    more: Part | None = plain[at:]
    while more is not None:
        if more:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"{len(more)} bytes after the last record")
        more = yield from next_piece(left)
        if more is not None:
            yield None


def _not_next(index: int) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, f"record {index} does not have the next offset")
