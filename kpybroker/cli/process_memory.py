"""How the process of a broker has its memory managed: the collector of cycles, and glibc's allocator."""

from __future__ import annotations

import gc
import sys

GC_THRESHOLDS = (10_000, 5, 200)
"""A collection of what is young looks at 60,000 objects at most, some 15 ms; a full one comes after 1,000 of them."""
PUT_OFF = 20
"""Full collections come so many times as late while long requests are under way."""
MALLOC_TRIM_THRESHOLD, MALLOC_MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt."""
KEPT_BYTES = 64 << 20


def calm_collector() -> None:
    """What start-up made stays to the end: it need not be looked at again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def put_off_full_collections(is_busy: bool) -> None:
    """What long requests are read into is alive until they are answered: to look through all of it takes seconds."""
    young, middle, old = GC_THRESHOLDS
    gc.set_threshold(young, middle, old * PUT_OFF if is_busy else old)


def keep_freed_memory() -> None:
    """Tell glibc to keep what large replies free: else each gets its pages anew, which costs more than to copy them."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MALLOC_TRIM_THRESHOLD, KEPT_BYTES)
        mallopt(MALLOC_MMAP_THRESHOLD, KEPT_BYTES)
