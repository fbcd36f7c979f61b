"""Reuses memory for large reads, because allocating new pages for each megabyte takes more time than the read."""

from __future__ import annotations

import mmap
import sys

KEPT_BYTES = 32 << 20
KEPT_BUFFERS = 32
GRAIN_BYTES = 64 << 10
"""Sizes are rounded up to this, so that a buffer also fits the next read."""


def mapped_memory(size_bytes: int) -> mmap.mmap:
    """Zeroed memory whose pages the system provides when they are first used."""
    if sys.platform == "win32":
        return mmap.mmap(-1, size_bytes)
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class ReadBuffer(bytearray):
    """A buffer that `ReadBuffers.take` returned. Its users have views of it."""

    __slots__ = ("is_free",)

    is_free: bool
    """Whether it is kept for the next read. If it were returned twice, two reads would share it."""


class ReadBuffers:
    """The buffers that are free again. The latest one is reused first, because it is still in the processor's cache."""

    def __init__(self) -> None:
        self._free: list[ReadBuffer] = []
        self._free_bytes = 0

    @property
    def free_sizes(self) -> list[int]:
        """The sizes in bytes of the buffers that are kept for the next reads."""
        return [len(buffer) for buffer in self._free]

    def take(self, size: int) -> memoryview:
        """A view of `size` bytes with undefined content."""
        for index in range(len(self._free) - 1, -1, -1):
            capacity = len(self._free[index])
            if size <= capacity <= 4 * size + GRAIN_BYTES:
                self._free_bytes -= capacity
                buffer = self._free.pop(index)
                buffer.is_free = False
                return memoryview(buffer)[:size]
        buffer = ReadBuffer(-(-size // GRAIN_BYTES) * GRAIN_BYTES)
        buffer.is_free = False
        return memoryview(buffer)[:size]

    def give_back(self, buffer: ReadBuffer) -> None:
        """Take back a buffer that has no views in use."""
        assert not buffer.is_free, "a read buffer was returned twice"
        if len(self._free) < KEPT_BUFFERS and self._free_bytes + len(buffer) <= KEPT_BYTES:
            buffer.is_free = True
            self._free.append(buffer)
            self._free_bytes += len(buffer)
