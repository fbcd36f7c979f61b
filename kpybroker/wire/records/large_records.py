"""Scans records that are larger than the pieces they come in, field by field; and the interface of a scan."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Protocol

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records.decompressed import Load
from kpybroker.wire.records.record_fields import INT_BITS, LONG_BITS, Piece, misfit, varint, whole_headers

SLICE_HEADERS = 10_000
"""Headers of one record that take about a millisecond."""
FIELDS_BYTES = 32
"""The least size of a record's fields before its key: length, attributes, two deltas, the length of the key."""
Slices = Generator[Load | None, Any, None]
"""Work on the loop that lets others run wherever it yields. Call a Load before continuing."""


class Walking(Protocol):
    """A scan of records."""

    seen: int
    """How many records were scanned."""

    def some(self, plain: Piece, at: int, most: int) -> int:
        """Scan at most `most` records that are whole; returns the position after them.

        Raises KafkaError; IndexError for a whole record whose fields exceed it.
        """

    def note(self, delta: int, offset: int, key_bytes: int) -> None:
        """One large record: its deltas (offset still zigzag), -1 for no key. Raises KafkaError."""

    def note_headers(self, count: int) -> bool:
        """A large record with this many headers: returns whether to check them, and the error if they are wrong. Raises
        KafkaError."""

    @property
    def is_over(self) -> bool:
        """Whether the rest of the records does not matter."""


def next_piece(left: Iterator[Piece | Load]) -> Generator[Load | None, Any, Piece | None]:
    for each in left:
        if isinstance(each, Piece):
            return each
        yield each
    return None


class LargeRecord:
    """The fields, one by one, of a record that is not complete in its piece and too large to be joined."""

    def __init__(self, plain: Piece, at: int, left: Iterator[Piece | Load]) -> None:
        self.plain = plain
        self.at = at
        self._left = left
        self._bytes = 0
        """How many bytes of the record are still to come."""
        self._index = 0

    def walk_over(self, found: Walking) -> Slices:
        """Report the record to `found`. Raises KafkaError."""
        self._index = found.seen
        size, self.at = varint(self.plain, self.at)
        if size & 1:
            raise misfit(self._index)
        self._bytes = size >> 1
        yield from self._skip(1)
        delta = yield from self._number(LONG_BITS)
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
            elif count:  # the next leaves the piece, or its record
                if (yield from self._sized()) < 0:
                    raise misfit(self._index)
                yield from self._sized()
                count -= 1

    def _number(self, bits: int = INT_BITS) -> Generator[Load | None, Any, int]:
        """A varint, still zigzag."""
        needed = min(10, self._bytes)
        while len(self.plain) - self.at < needed:
            self.plain = bytes(self.plain[self.at :]) + bytes((yield from self._next()))
            self.at = 0
            yield None
        before = self.at
        try:
            value, self.at = varint(self.plain, before, bits)
        except IndexError as error:
            raise misfit(self._index) from error
        self._bytes -= self.at - before
        return value

    def _sized(self) -> Generator[Load | None, Any, int]:
        """Skip a length and its bytes; returns -1 for none."""
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
            yield None
        self.at += size

    def _next(self) -> Generator[Load | None, Any, Piece]:
        more = yield from next_piece(self._left)
        if more is None:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"record {self._index} is not whole")
        return more
