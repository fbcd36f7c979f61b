"""Free memory that costs both brokers the same.

The host of a virtual machine may take back memory that the guest has freed (free page reporting). The next use of such
a page then costs about ten times a copy to it. Which broker pays depends on which deleted files last, not on either
broker's work. So each slice begins with free memory that has just been used.
"""

import mmap
import os

TOUCHED_BYTES = 3 << 30
"""More than a slice writes, and more than the guest gives back before the slice ends."""


def touch(size_bytes: int = TOUCHED_BYTES) -> None:
    """Use this much memory, but at most a quarter of what is available, and free it."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size_bytes = min(size_bytes, available // 4) // mmap.PAGESIZE * mmap.PAGESIZE
    if not size_bytes:
        return
    with mmap.mmap(-1, size_bytes) as memory:
        view = memoryview(memory)
        view[:: mmap.PAGESIZE] = b"x" * (size_bytes // mmap.PAGESIZE)
        view.release()
