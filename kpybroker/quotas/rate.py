"""Measures rates, over windows of samples (KIP-13) or with permits that are refilled over time (KIP-599).

The formulas give Kafka's results to the millisecond: tests/quotas compares them with those of Apache Kafka.
"""

from __future__ import annotations

from collections import deque
from math import floor, inf
from typing import NamedTuple

LONGEST_MS = (1 << 31) - 1
"""The throttle time in a response is an INT32."""


class Windows(NamedTuple):
    """The number of samples and the length of each: `quota.window.num` and `quota.window.size.seconds`."""

    samples: int = 11
    size_ms: int = 1000


class _Sample:
    __slots__ = ("last_ms", "since_ms", "total")

    def __init__(self, now_ms: int) -> None:
        self.since_ms = self.last_ms = now_ms
        self.total = 0.0


class Rate:
    """Measures an amount per second.

    A sample begins with the first record after the end of the previous sample, and counts until its last record is as
    old as all windows together. The rate is the sum of the samples, divided by the time since the oldest sample began
    or by the length of all windows except one, whichever is longer. So a new client may use at once the amount that the
    quota allows in that time.
    """

    __slots__ = ("_samples", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: deque[_Sample] = deque(maxlen=windows.samples + 1)

    def record(self, value: float, now_ms: int) -> None:
        """Add an amount."""
        samples = self._samples
        if not samples or now_ms - samples[-1].since_ms >= self._windows.size_ms:
            samples.append(_Sample(now_ms))
        samples[-1].total += value
        samples[-1].last_ms = now_ms

    def per_second(self, now_ms: int) -> float:
        """The current rate."""
        window_ms = self._window_ms(now_ms)
        return sum(sample.total for sample in self._samples) / (window_ms / 1000)

    def wait_ms(self, limit: float, now_ms: int) -> int:
        """The time in milliseconds after which the rate is no longer above the limit."""
        rate = self.per_second(now_ms)
        if rate <= limit:
            return 0
        if limit <= 0:
            return LONGEST_MS
        return _whole_ms((rate - limit) / limit * self._window_ms(now_ms))

    def _window_ms(self, now_ms: int) -> int:
        samples, (count, size_ms) = self._samples, self._windows
        while samples and now_ms - samples[0].last_ms >= count * size_ms:
            samples.popleft()
        elapsed_ms = now_ms - samples[0].since_ms if samples else 0
        missing = max(count - 1 - elapsed_ms // size_ms, 0)
        return max(elapsed_ms + missing * size_ms, 1)


class Permits:
    """Permits that are refilled at the rate of the quota, up to the amount of all windows."""

    __slots__ = ("_left", "_since_ms", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._left: float | None = None
        """None before the first permits are taken, when all permits are available."""
        self._since_ms = 0

    def take(self, count: float, limit: float, now_ms: int) -> None:
        """Take permits, whether they are available or not."""
        self._left = self._at(limit, now_ms) - count
        self._since_ms = now_ms

    def wait_ms(self, limit: float, now_ms: int) -> int:
        """The time in milliseconds after which no permits are owed."""
        left = self._at(limit, now_ms)
        if left >= 0:
            return 0
        return _whole_ms(-left / limit * 1000) if limit > 0 else LONGEST_MS

    def _at(self, limit: float, now_ms: int) -> float:
        all_of_them = limit * self._windows.samples * self._windows.size_ms / 1000
        if self._left is None or all_of_them == inf:
            return all_of_them
        return min(self._left + limit * (now_ms - self._since_ms) / 1000, all_of_them)


def _whole_ms(wait_ms: float) -> int:
    """Round to whole milliseconds, at most LONGEST_MS. With the smallest limits, the time would be infinite."""
    return floor(min(wait_ms, LONGEST_MS) + 0.5)
