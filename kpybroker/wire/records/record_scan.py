"""Scans the records of a batch without creating objects for them, in slices.

Layout of a record: length varint (of the bytes after it), attributes int8, timestamp delta varint, offset delta varint,
key and value (a length varint, which is -1 for null, and bytes), number of headers varint, headers (each with a key and
a value as above). Varints are zigzag. Source: KIP-98, "Message format".
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records.decompressed import Load
from kpybroker.wire.records.large_records import FIELDS_BYTES, LargeRecord, Slices, Walking, next_piece
from kpybroker.wire.records.record_fields import (
    LONG_BITS,
    Piece,
    after_length,
    misfit,
    record_size,
    varint,
    whole_headers,
)
from kpybroker.wire.records.record_layouts import AFTER_LENGTH, INDEXES, MISFIT, layout_at

SLICE_RECORDS = 1000
"""The number of records or headers in one slice, which takes about half a millisecond."""
BLAMED_LIMIT = 1000
"""The most records that are named in one error."""
_SHORT_BYTES = 64 << 10
"""A record that spans several pieces is joined up to this size. A larger record is scanned field by field."""
_ALONE_MOST = 16
"""The most records that `_any` scans before `_sound` is tried again."""


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
    headers_limit: int | None = None
    """The most headers. A batch with more is refused."""

    @property
    def is_over(self) -> bool:
        return False

    def note(self, delta: int, offset: int, key_bytes: int) -> None:
        """Check the next record. Raises KafkaError."""
        if offset != self.seen << 1:
            raise _not_next(self.seen)
        if delta > self.newest:
            self.newest = delta
        if not self.earliest <= delta <= self.latest:
            self.blame_time(self.seen, delta)
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
        if delta != self.timeless and len(self.out_of_time) < BLAMED_LIMIT:
            self.out_of_time.append(index)

    def blame_key(self, index: int) -> None:
        if len(self.without_key) < BLAMED_LIMIT:
            self.without_key.append(index)

    def some(self, plain: Piece, at: int, most: int) -> int:
        last = self.seen + most
        begin, alone = -1, 1
        while True:
            before = self.seen
            at = self._sound(plain, at, last)
            alone = 1 if self.seen > before else min(2 * alone, _ALONE_MOST)
            for _ in range(min(alone, last - self.seen)):
                begin = at
                at = self._any(plain, begin)
                if at == begin:
                    return at
            if self.seen >= last:
                return at

    def _any(self, plain: Piece, begin: int) -> int:
        """Scan the next record, which may have any form. Returns the position after it, or `begin` if it is
        incomplete."""
        size, at = record_size(plain, begin)
        end = at + (size >> 1)
        if end > len(plain):
            return begin
        delta, at = varint(plain, at + 1, LONG_BITS)
        offset, at = varint(plain, at)
        if offset != self.seen << 1:
            raise _not_next(self.seen)
        key, at = varint(plain, at)
        value, at = varint(plain, at + (key >> 1))
        at = self._end_of_headers(plain, at + (value >> 1), end)
        # every length has moved `at` forward, so if `at` is the end here, no field extends beyond its record; an odd
        # length is negative
        if at != end or size & 1 or (key & 1 and key != 1) or (value & 1 and value != 1):
            raise misfit(self.seen)
        self.note((delta >> 1) ^ -(delta & 1), offset, -1 if key & 1 else key >> 1)
        return at

    def _end_of_headers(self, plain: Piece, at: int, end: int) -> int:
        """The position after the headers of a record. The record is valid only if this is its `end`."""
        count, at = varint(plain, at)
        if count & 1 or count > end - at:
            return MISFIT  # the number is negative, or too large for headers of at least two bytes
        number, at = whole_headers(plain, at, count >> 1)
        if number < count >> 1 or at != end:
            return MISFIT
        self.note_headers(number)
        return at

    def _sound(self, plain: Piece, at: int, last: int) -> int:
        """Scan records up to index `last`, while they have the usual form; `_any` scans any other record. Short varints
        are decoded in place, because calls would take more time than the rest of the scan."""
        earliest, latest, total, begin, before = self.earliest, self.latest, len(plain), at, -1
        while (index := self.seen) < last and index < INDEXES:
            (unpack, width, after_key), run, rest = layout_at(index, last, self.needs_keys)
            expected = run.start
            try:
                for expected in run:
                    begin = at
                    size = plain[at]
                    if size < 0x80:
                        end = at + AFTER_LENGTH[size]
                        at += 2
                    elif (more := plain[at + 1]) < 0x80:
                        end = at + AFTER_LENGTH[size] + (more << 6)
                        at += 3
                    else:
                        size, at = varint(plain, at)
                        end = at + (MISFIT if size & 1 else size >> 1)
                        at += 1
                    delta = plain[at]
                    at += 1
                    if delta > 0x7F:
                        delta = delta & 0x7F | plain[at] << 7
                        at += 1
                        if delta > 0x3FFF:
                            delta, at = varint(plain, at - 2, LONG_BITS)
                    if delta != before:  # as zigzag numbers: many records have the delta of the one before
                        before = delta
                        delta = (delta >> 1) ^ -(delta & 1)
                        if not earliest <= delta <= latest:
                            break
                        if delta > self.newest:
                            self.newest = delta
                    offset, offset_rest, key = unpack(plain, at)
                    if offset != expected or offset_rest != rest:
                        break
                    if key < 0x80:
                        at += after_key[key]
                    else:
                        at = after_length(plain, at + width, may_be_absent=not self.needs_keys)
                    value = plain[at]
                    if value < 0x80:
                        at += AFTER_LENGTH[value]
                    elif (more := plain[at + 1]) < 0x80:
                        at += AFTER_LENGTH[value] + (more << 6)
                    else:
                        at = after_length(plain, at)
                    at = self._end_of_headers(plain, at, end) if plain[at] else at + 1
                    if at != end or at > total:
                        break
                else:
                    self.seen = index + len(run)
                    continue
            except (IndexError, struct.error, KafkaError):
                pass
            self.seen, at = index + (expected - run.start >> 1), begin
            break
        return at


def walk(plain: bytes, count: int, earliest: int, latest: int) -> Walk:
    """Scan all `count` records at once, like `walk_through`. Raises KafkaError."""
    found = Walk(earliest, latest)
    for _ in walk_through(found, (plain,), count):
        pass
    return found


def walk_through(found: Walking, pieces: Iterable[Piece | Load], count: int) -> Slices:
    """Scan `count` records in slices. `pieces` yields their bytes, and each piece is released when it has been scanned.

    Raises KafkaError: INVALID_RECORD if the bytes are not these records, and the errors of `pieces`.
    """
    left = iter(pieces)
    plain: Piece = b""
    at = 0
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
        if found.seen - before == SLICE_RECORDS:
            yield None
        elif record_size(plain, at)[0] >> 1 > _SHORT_BYTES and len(plain) - at >= FIELDS_BYTES:
            record = LargeRecord(plain, at, left)
            yield from record.walk_over(found)
            plain, at = record.plain, record.at
        else:
            more = yield from next_piece(left)
            if more is None:
                raise KafkaError(ErrorCode.INVALID_RECORD, f"fewer than {count} records in the batch")
            plain = more if at >= len(plain) else bytes(plain[at:]) + bytes(more)
            at = 0
            yield None
    yield from _nothing_follows(plain, at, left)


def _nothing_follows(plain: Piece, at: int, left: Iterator[Piece | Load]) -> Slices:
    more: Piece | None = plain[at:]
    while more is not None:
        if more:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"{len(more)} bytes after the last record")
        more = yield from next_piece(left)
        if more is not None:
            yield None


def _not_next(index: int) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, f"record {index} does not have the next offset")
