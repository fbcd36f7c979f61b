"""Scans records that are larger than a decompressed piece, field by field, and defines the interface of a scan."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Protocol

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records.decompressed import Load, Part
from kpybroker.wire.records.record_fields import long_varint, misfit, varint, whole_headers

SLICE_HEADERS = 10_000
"""The number of headers of one record that are checked in a slice of about a millisecond."""
FIELDS_BYTES = 32
"""The bytes that suffice for a record's fields before its key: length, attributes, two deltas, and the key's length."""
Slices = Generator[Load | None, Any, None]
"""Work on the event loop. Other tasks may run whenever it yields. If it yields a Load, call it before continuing."""


class Walking(Protocol):
    """The interface of a scan of records."""

    seen: int
    """The number of scanned records."""

    def some(self, plain: bytes, at: int, most: int) -> int:
        """Scan at most `most` records that are complete in `plain`. Returns the position after them.

        Raises KafkaError, or IndexError for a complete record with fields that extend beyond its end.
        """

    def note(self, delta: int, offset: int, key_bytes: int) -> None:
        """Note one large record. `offset` is a zigzag number, and `key_bytes` is -1 if there is no key. Raises
        KafkaError."""

    def note_headers(self, count: int) -> bool:
        """Note the number of headers of a large record. Returns whether to check the headers. Raises KafkaError."""

    @property
    def is_over(self) -> bool:
        """Whether the remaining records need not be scanned."""


def next_piece(left: Iterator[Part | Load]) -> Generator[Load | None, Any, Part | None]:
    """The next piece; None if there is none."""
    for each in left:
        if isinstance(each, Part):
            return each
        yield each
    return None


class LargeRecord:
    """Reads the fields, one by one, of a record that spans several pieces and is too large to be joined."""

    def __init__(self, plain: bytes, at: int, left: Iterator[Part | Load]) -> None:
        self.plain = plain
        self.at = at
        self._left = left
        self._bytes = 0
        """The number of bytes of the record that have not been read yet."""
        self._index = 0

    def walk_over(self, found: Walking) -> Slices:
        """Read the whole record, and report it to `found`. Raises KafkaError."""
        self._index = found.seen
        size, self.at = varint(self.plain, self.at)
        if size & 1:
            raise misfit(self._index)
        self._bytes = size >> 1
        yield from self._skip(1)
        delta = yield from self._number(is_long=True)
        offset = yield from self._number()
        key_bytes = yield from self._sized()
        yield from self._sized()
        count = yield from self._number()
        if count & 1 or count > self._bytes:
            raise misfit(self._index)
        if found.note_headers(count >> 1):
            yield from self._headers(count >> 1)
        else:
            yield from self._skip(self._bytes)
        if self._bytes:
            raise misfit(self._index)
        found.note((delta >> 1) ^ -(delta & 1), offset, key_bytes)

    def _headers(self, count: int) -> Slices:
        while count:
            number, end = whole_headers(self.plain, self.at, min(count, SLICE_HEADERS))
            yield from self._skip(end - self.at)
            count -= number
            if number == SLICE_HEADERS:
                yield None
            elif count:  # the next header extends beyond the piece or the record
                if (yield from self._sized()) < 0:
                    raise misfit(self._index)
                yield from self._sized()
                count -= 1

    def _number(self, *, is_long: bool = False) -> Generator[Load | None, Any, int]:
        """Read a varint, as a zigzag number."""
        needed = min(10, self._bytes)
        while len(self.plain) - self.at < needed:
            self.plain = self.plain[self.at :] + (yield from self._next())
            self.at = 0
        before = self.at
        try:
            value, self.at = (long_varint if is_long else varint)(self.plain, before)
        except IndexError as error:
            raise misfit(self._index) from error
        self._bytes -= self.at - before
        return value

    def _sized(self) -> Generator[Load | None, Any, int]:
        """Skip a length and its bytes, and return the length; -1 means that there are no bytes."""
        size = yield from self._number()
        if size & 1:
            if size != 1:
                raise misfit(self._index)
            return -1
        yield from self._skip(size >> 1)
        return size >> 1

    def _skip(self, size: int) -> Slices:
        self._bytes -= size
        if self._bytes < 0:
            raise misfit(self._index)
        while (here := len(self.plain) - self.at) < size:
            size -= here
            self.plain, self.at = (yield from self._next()), 0
        self.at += size

    def _next(self) -> Generator[Load | None, Any, bytes]:
        yield None
        more = yield from next_piece(self._left)
        if more is None:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"record {self._index} is incomplete")
        return bytes(more)
