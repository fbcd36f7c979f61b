"""The headers of a segment's batches, one behind the other."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from kpybroker.wire.records.batch import HEADER_BYTES, PREFIX_BYTES, Batch

if TYPE_CHECKING:
    from kpybroker.storage.files.segment import Segment

WALKED = Struct(">qi11xi")
"""Of a batch's header: base offset, length, last offset delta."""


class Walk:
    """Iterator over batch headers, read in chunks. Ends at the first bytes that cannot be a batch."""

    __slots__ = ("_at", "_chunk", "_chunk_at", "_chunk_bytes", "_header", "_segment")

    def __init__(self, segment: Segment, position: int, chunk_bytes: int) -> None:
        self._segment = segment
        self._at = position
        self._header = 0
        self._chunk = b""
        self._chunk_at = position
        self._chunk_bytes = chunk_bytes

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> tuple[int, int, int, int]:
        at = self._at
        inside = at - self._chunk_at
        if inside + HEADER_BYTES > len(self._chunk):
            left = self._segment.written_bytes - at
            if left < HEADER_BYTES:
                raise StopIteration
            self._chunk = self._segment.read(min(self._chunk_bytes, left), at)
            self._chunk_at, inside = at, 0
            if len(self._chunk) < HEADER_BYTES:
                raise StopIteration
        base_offset, length, last_delta = WALKED.unpack_from(self._chunk, inside)
        size = length + PREFIX_BYTES
        if size < HEADER_BYTES or at + size > self._segment.written_bytes:
            raise StopIteration
        self._header = inside
        self._at = at + size
        return at, base_offset, base_offset + last_delta + 1, size

    def header(self) -> Batch:
        """The batch that was walked last, without its records."""
        return Batch(memoryview(self._chunk)[self._header : self._header + HEADER_BYTES])
