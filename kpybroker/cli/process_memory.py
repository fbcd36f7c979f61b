"""Memory settings of a broker's process: the garbage collector and glibc's allocator."""

from __future__ import annotations

import gc
import sys

GC_THRESHOLDS = (10_000, 5, 200)
"""A young collection scans at most 60,000 objects in about 15 ms. A full one follows after 1,000 young ones."""
PUT_OFF = 20
"""The factor by which full collections become rarer while long requests are in progress."""
MALLOC_TRIM_THRESHOLD, MALLOC_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""
KEPT_BYTES = 64 << 20


def freeze_startup_objects() -> None:
    """Exempt the objects that were created at startup from collections, because they live until the process ends. A
    collection before that would hold up the first requests by 20 ms, and free 3,000 of 50,000 objects."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def put_off_full_collections(is_busy: bool) -> None:
    """Make full collections rarer during long requests, whose objects live until the response and take seconds to
    scan."""
    young, middle, old = GC_THRESHOLDS
    gc.set_threshold(young, middle, old * PUT_OFF if is_busy else old)


def keep_freed_memory() -> None:
    """Have glibc keep the freed memory of large replies: new pages for a reply would cost more than copying the
    reply."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MALLOC_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(MALLOC_MMAP_THRESHOLD, KEPT_BYTES)
