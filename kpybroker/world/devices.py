"""Measures for each directory how fast its writes are, how many bytes are queued for it, and for how long its device
has not answered.

A write into the page cache takes microseconds until the kernel makes it wait for the device. From then on, writes go to
a thread until they have been fast for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

SLOW_WRITE_S = 0.05
"""A write that takes this much longer than the copying of its bytes had to wait for the device."""
COPIED_BYTES_PER_S = 500_000_000
"""The least rate at which bytes are copied into the page cache."""
QUICK_AFTER_S = 5.0
"""How long writes must have been fast before they return to the loop; doubled with each relapse."""
QUICK_AFTER_MAX_S = 320.0
QUEUED_BYTES_MAX = 32 << 20
"""With this much queued, a slow device takes no more appends."""


class Device:
    """The disk below one directory."""

    __slots__ = (
        "_is_apart",
        "_oldest_since_ms",
        "_quick_after_s",
        "_slow_at_s",
        "_under_way",
        "_works",
        "is_slow",
        "path",
        "queued_bytes",
    )

    def __init__(self, path: str, *, is_apart: bool = True) -> None:
        self.path = path
        self._is_apart = is_apart
        self.is_slow = False
        """Whether writes go to a thread."""
        self.queued_bytes = 0
        """The bytes that threads are writing or will write."""
        self._slow_at_s = -QUICK_AFTER_MAX_S
        self._quick_after_s = QUICK_AFTER_S
        self._under_way: dict[int, None] = {}
        """The writes and syncs for which somebody waits, in the order in which they began."""
        self._works = 0
        self._oldest_since_ms = 0

    @property
    def is_full(self) -> bool:
        """Whether the queue is at its limit."""
        return self.queued_bytes >= QUEUED_BYTES_MAX

    def queue(self, size_bytes: int) -> None:
        """Add bytes that threads will write."""
        self.queued_bytes += size_bytes

    def unqueue(self, size_bytes: int) -> None:
        """Remove bytes that have been written, or never will be."""
        self.queued_bytes -= size_bytes

    def begin(self, now_ms: int) -> int:
        """A write or sync that somebody waits for begins on a thread; returns the number for `end`."""
        if not self._under_way:
            self._oldest_since_ms = now_ms
        self._works += 1
        self._under_way[self._works] = None
        return self._works

    def end(self, work: int, now_ms: int) -> None:
        """The write or sync has ended, successfully or not."""
        was_oldest = work == next(iter(self._under_way))
        del self._under_way[work]
        if was_oldest:
            self._oldest_since_ms = now_ms

    @contextmanager
    def working(self, clock_ms: Callable[[], int]) -> Iterator[None]:
        """Call `begin` and `end` around a write or sync."""
        work = self.begin(clock_ms())
        try:
            yield
        finally:
            self.end(work, clock_ms())

    def silent_ms(self, now_ms: int) -> int:
        """How long the same write or sync has been the oldest under way; 0 if there is none.

        A queue for few threads is not silence: as long as writes end, the oldest one changes.
        """
        return now_ms - self._oldest_since_ms if self._under_way else 0

    def took(self, seconds: float, now_s: float, size_bytes: int = 0) -> None:
        """A write of this many bytes has ended at `now_s` of a monotonic clock. Writes on the loop need to be reported
        only if they took SLOW_WRITE_S or more."""
        if not self._is_apart:
            return  # there is nothing else that could run in the meantime
        if seconds >= SLOW_WRITE_S + size_bytes / COPIED_BYTES_PER_S:
            if not self.is_slow:
                self.is_slow = True
                is_relapse = now_s - self._slow_at_s < 2 * self._quick_after_s
                self._quick_after_s = min(2 * self._quick_after_s, QUICK_AFTER_MAX_S) if is_relapse else QUICK_AFTER_S
                log.warning("%s: a write took %.2f s; threads write there until it is quick again", self.path, seconds)
            self._slow_at_s = now_s
        elif self.is_slow and now_s - self._slow_at_s >= self._quick_after_s:
            self.is_slow = False
            log.info("%s: writes have been quick for %.0f s", self.path, now_s - self._slow_at_s)


class Devices:
    """The directories whose devices are distinguished. All files outside of them share one device."""

    def __init__(self) -> None:
        self._other = Device("/", is_apart=False)
        self._by_path: dict[str, Device] = {}

    def __bool__(self) -> bool:
        return bool(self._by_path)

    def separate(self, path: str) -> None:
        """Give the files below `path` a device of their own."""
        self._by_path.setdefault(path, Device(path))

    def at(self, path: str) -> Device:
        """The device of a file or directory."""
        inside = [root for root in self._by_path if path == root or path.startswith(f"{root}/")]
        return self._by_path[max(inside, key=len)] if inside else self._other
