"""Reads the headers of the batches in a file, one after the other."""

from __future__ import annotations

from collections.abc import Callable

from kpybroker.wire.records.batch import HEADER_BYTES, MAGIC_AT, PREFIX_BYTES, WALKED, Batch


class BatchHeaders:
    """An iterator over batch headers, which are read in chunks. It ends at the first bytes that cannot be a batch.

    Each element is (position, base offset, next offset, size in bytes).
    """

    __slots__ = ("_at", "_chunk", "_chunk_at", "_chunk_bytes", "_end", "_header", "_read")

    def __init__(
        self, read: Callable[[int, int], bytes], end: Callable[[], int], position: int, chunk_bytes: int
    ) -> None:
        """`read(size, position)` returns bytes of the file. `end()` returns the end of the file, which may change
        during the iteration."""
        self._read = read
        self._end = end
        self._at = position
        self._header = 0
        self._chunk = b""
        self._chunk_at = position
        self._chunk_bytes = chunk_bytes

    def __iter__(self) -> BatchHeaders:
        return self

    def __next__(self) -> tuple[int, ...]:  # mypyc makes wrong C for a tuple of fixed length
        at = self._at
        inside = at - self._chunk_at
        if inside + HEADER_BYTES > len(self._chunk):
            left = self._end() - at
            if left < HEADER_BYTES:
                raise StopIteration
            self._chunk = self._read(min(self._chunk_bytes, left), at)
            self._chunk_at, inside = at, 0
            if len(self._chunk) < HEADER_BYTES:
                raise StopIteration
        base_offset, length, last_delta = WALKED.unpack_from(self._chunk, inside)
        size = length + PREFIX_BYTES
        if size < HEADER_BYTES or self._chunk[inside + MAGIC_AT] != 2 or at + size > self._end():
            raise StopIteration
        self._header = inside
        self._at = at + size
        return at, base_offset, base_offset + last_delta + 1, size

    def header(self) -> Batch:
        """The batch of the last element, without its records."""
        return Batch(memoryview(self._chunk)[self._header : self._header + HEADER_BYTES])
