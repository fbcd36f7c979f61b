"""Measures the speed of writes, the queued bytes and the delay of the device of each directory.

A write into the page cache takes microseconds, unless the kernel makes it wait for the device. After that, a thread
executes the writes until they have been fast for a while.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

SLOW_WRITE_S = 0.05
"""A write that takes longer than copying its bytes by at least this time had to wait for the device."""
COPIED_BYTES_PER_S = 500_000_000
"""The lowest rate at which bytes are copied into the page cache."""
QUICK_AFTER_S = 5.0
"""The time for which writes must have been fast before the loop executes them again; doubled with each relapse."""
QUICK_AFTER_MAX_S = 320.0
QUEUED_BYTES_MAX = 32 << 20
"""When this number of bytes is queued, a slow device accepts no more appends."""


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
        """Whether a thread executes the writes."""
        self.queued_bytes = 0
        """The bytes that threads are writing or will write."""
        self._slow_at_s = -QUICK_AFTER_MAX_S
        self._quick_after_s = QUICK_AFTER_S
        self._under_way: dict[int, None] = {}
        """The writes and syncs in progress whose results are awaited, in the order in which they began."""
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
        """Note the start of a write or sync on a thread whose result is awaited. Returns the number for `end`."""
        if not self._under_way:
            self._oldest_since_ms = now_ms
        self._works += 1
        self._under_way[self._works] = None
        return self._works

    def end(self, work: int, now_ms: int) -> None:
        """Note the end of the write or sync, successful or not."""
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
        """The time in milliseconds for which the oldest write or sync in progress has been the oldest; 0 if there is
        none.

        A long queue does not make it grow, because the oldest one changes whenever a write ends.
        """
        return now_ms - self._oldest_since_ms if self._under_way else 0

    def took(self, seconds: float, now_s: float, size_bytes: int = 0) -> None:
        """Note the duration of a write of `size_bytes` that ended at `now_s` of a monotonic clock. Writes on the loop
        must be reported only if they took SLOW_WRITE_S or more."""
        if not self._is_apart:
            return  # a thread would not help, because all other files share the device
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
    """The directories with a device of their own. All files outside these directories share one device."""

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
