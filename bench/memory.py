"""Touches free memory before each slice, so that its pages cost both brokers the same.

The host of a virtual machine may reclaim memory that the guest has freed (free page reporting). The next use of such a
page then takes about ten times as long as a copy to it. Which broker is slowed down depends on whose files were deleted
last, not on the work of the broker. So each slice begins with free memory that has just been used.
"""

import mmap
import os

TOUCHED_BYTES = 3 << 30
"""More than a slice writes, and more than the guest returns to the host before the slice ends."""
LITTLE_BYTES = 256 << 20
"""The same, for loads with small records or without any."""


def touch(size_bytes: int) -> None:
    """Use this much memory, but at most a quarter of the available memory, and free it."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size_bytes = min(size_bytes, available // 4) // mmap.PAGESIZE * mmap.PAGESIZE
    if not size_bytes:
        return
    with mmap.mmap(-1, size_bytes) as memory:
        view = memoryview(memory)
        view[:: mmap.PAGESIZE] = b"x" * (size_bytes // mmap.PAGESIZE)
        view.release()
