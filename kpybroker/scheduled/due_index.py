"""An index of pending records by due time: a hierarchical timing wheel.

Records that are due later are in buckets of an hour, a minute and a second, unsorted, with 12 bytes each: one million
of them take 12 MB. The records of the earliest seconds are in buckets of a millisecond, in order.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence

WIDTHS_MS = (3_600_000, 60_000, 1000)
"""The widths of the buckets. A bucket is divided into narrower ones when its first records are wanted."""
_DUE_MAX = (1 << 63) - 1
_TRIMMED = 10_000
MOVED_AT_ONCE = 10_000
"""The most records that are moved to narrower buckets at once, in a few milliseconds."""


class _Bucket:
    """The records that are due in one interval: the time since its begin, and the position."""

    __slots__ = ("delays", "positions")

    def __init__(self) -> None:
        self.delays = array("I")
        self.positions = array("q")


class _Ready:
    """The records that are due in one millisecond. Those before `at` have been taken."""

    __slots__ = ("at", "is_sorted", "positions")

    def __init__(self) -> None:
        self.positions = array("q")
        self.is_sorted = True
        self.at = 0

    def add(self, positions: Sequence[int]) -> None:
        """Add records."""
        if self.is_sorted:
            last = self.positions[-1] if self.positions else -1
            self.is_sorted = last < positions[0] and (len(positions) == 1 or list(positions) == sorted(positions))
        self.positions.extend(positions)

    def sort(self) -> None:
        """Put the records that have not been taken into the order of their positions."""
        if not self.is_sorted:
            self.positions, self.at, self.is_sorted = array("q", sorted(self.positions[self.at :])), 0, True


class DueIndex:
    """Pairs of a due time and a position, in ascending order. Each pair is in it at most once."""

    __slots__ = ("_begun_ms", "_levels", "_ready", "_size", "_times")

    def __init__(self) -> None:
        self._ready: dict[int, _Ready] = {}
        """The records that are due before `_begun_ms`, by time."""
        self._times: list[int] = []
        """The keys of `_ready`, in ascending order."""
        self._begun_ms = 0
        """A multiple of the narrowest width. Wider buckets have only records that are due later."""
        self._levels: tuple[dict[int, _Bucket], ...] = tuple({} for _ in WIDTHS_MS)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, dues_ms: Iterable[int], position: int) -> None:
        """Add records with consecutive positions, the first of which is `position`."""
        before = position
        begin_ms = end_ms = 0
        bucket = _Bucket()
        for due_ms in dues_ms:
            if begin_ms <= due_ms < end_ms:
                bucket.delays.append(due_ms - begin_ms)
                bucket.positions.append(position)
            elif due_ms < self._begun_ms:
                self._add_ready(due_ms, (position,))
            else:
                due_ms = min(due_ms, _DUE_MAX)
                bucket, begin_ms, end_ms = self._bucket_for(due_ms)
                bucket.delays.append(due_ms - begin_ms)
                bucket.positions.append(position)
            position += 1
        self._size += position - before

    def _add_ready(self, due_ms: int, positions: Sequence[int]) -> None:
        ready = self._ready.get(due_ms)
        if ready is None:
            ready = self._ready[due_ms] = _Ready()
            insort(self._times, due_ms)
        ready.add(positions)

    def _bucket_for(self, due_ms: int) -> tuple[_Bucket, int, int]:
        """The widest bucket for this time that has not begun, or the narrowest one, with its begin and end."""
        for level, width_ms in enumerate(WIDTHS_MS):
            number = due_ms // width_ms
            if number * width_ms >= self._begun_ms or level == len(WIDTHS_MS) - 1:
                break
        return self._bucket_at(level, due_ms)

    def _bucket_at(self, level: int, due_ms: int) -> tuple[_Bucket, int, int]:
        buckets, width_ms = self._levels[level], WIDTHS_MS[level]
        number = due_ms // width_ms
        bucket = buckets.get(number)
        if bucket is None:
            bucket = buckets[number] = _Bucket()
        return bucket, number * width_ms, (number + 1) * width_ms

    def _earliest(self) -> tuple[int, int] | None:
        """The level and the begin of the bucket that begins first, the widest of them; None if there is none."""
        found = [
            (min(buckets) * width_ms, level)
            for level, (buckets, width_ms) in enumerate(zip(self._levels, WIDTHS_MS, strict=True))
            if buckets
        ]
        begin_ms, level = min(found, default=(-1, -1))
        return None if level < 0 else (level, begin_ms)

    def beginning(self, until_ms: int, most: int) -> Iterator[None]:
        """Divide buckets, so that `first` with the same arguments is quick. Yields after every few milliseconds."""
        while self._has_less(most) and (earliest := self._earliest()) is not None and earliest[1] <= until_ms:
            yield from self._divide(*earliest)

    def _has_less(self, most: int) -> bool:
        """Whether less than `most` records are ready."""
        for time_ms in self._times:
            ready = self._ready[time_ms]
            most -= len(ready.positions) - ready.at
            if most <= 0:
                return False
        return True

    def _divide(self, level: int, begin_ms: int) -> Iterator[None]:
        """Move the records of a bucket to narrower ones. The records stay in the index if this is not continued."""
        bucket = self._levels[level][begin_ms // WIDTHS_MS[level]]
        is_narrowest = level == len(WIDTHS_MS) - 1
        if is_narrowest:
            self._begun_ms = max(self._begun_ms, begin_ms + WIDTHS_MS[-1])
        delays, positions = bucket.delays, bucket.positions
        while delays:
            some = slice(0, MOVED_AT_ONCE)
            pairs = zip(delays[some], positions[some], strict=True)
            if is_narrowest:
                self._make_ready(begin_ms, pairs)
            else:
                self._narrow(level + 1, begin_ms, pairs)
            del delays[some], positions[some]
            yield
        if self._levels[level].get(begin_ms // WIDTHS_MS[level]) is bucket:
            del self._levels[level][begin_ms // WIDTHS_MS[level]]

    def _narrow(self, level: int, begin_ms: int, pairs: Iterable[tuple[int, int]]) -> None:
        into, into_begin_ms, into_end_ms = _Bucket(), 0, 0
        for delay_ms, position in pairs:
            due_ms = begin_ms + delay_ms
            if not into_begin_ms <= due_ms < into_end_ms:
                into, into_begin_ms, into_end_ms = self._bucket_at(level, due_ms)
            into.delays.append(due_ms - into_begin_ms)
            into.positions.append(position)

    def _make_ready(self, begin_ms: int, pairs: Iterable[tuple[int, int]]) -> None:
        by_delay: dict[int, list[int]] = {}
        for delay_ms, position in pairs:
            by_delay.setdefault(delay_ms, []).append(position)
        for delay_ms, positions in by_delay.items():
            self._add_ready(begin_ms + delay_ms, positions)

    def first(self, until_ms: int, most: int) -> list[tuple[int, int]]:
        """The first records that are due up to `until_ms`, at most `most`: due time and position."""
        for _ in self.beginning(until_ms, most):
            pass
        found: list[tuple[int, int]] = []
        for time_ms in self._times:
            if time_ms > until_ms or len(found) >= most:
                break
            ready = self._ready[time_ms]
            ready.sort()
            found += [(time_ms, each) for each in ready.positions[ready.at : ready.at + most - len(found)]]
        return found

    def next_due_ms(self) -> int | None:
        """A time before which no record is due, and which is exact for the next records; None if it is empty."""
        if self._times:
            return self._times[0]
        earliest = self._earliest()
        return None if earliest is None else earliest[1]

    def take(self, due_ms: int, position: int, is_taken: Callable[[int, int], bool]) -> list[int]:
        """Remove the records up to a place in time for which `is_taken` holds. Returns their positions, unordered."""
        taken: list[int] = []
        end = bisect_right(self._times, due_ms)
        kept_times = []
        for time_ms in self._times[:end]:
            last = position if time_ms == due_ms else _DUE_MAX
            if self._take_ready(time_ms, last, is_taken, taken):
                kept_times.append(time_ms)
        self._times[:end] = kept_times

        def is_within(*of: int) -> bool:
            return of <= (due_ms, position) and is_taken(*of)

        for buckets, width_ms in zip(self._levels, WIDTHS_MS, strict=True):
            for number in [number for number in buckets if number * width_ms <= due_ms]:
                self._take_later(buckets, number, width_ms, is_within, taken)
        self._size -= len(taken)
        return taken

    def _take_ready(self, time_ms: int, last: int, is_taken: Callable[[int, int], bool], taken: list[int]) -> bool:
        """Take records of one millisecond. Returns whether some are left."""
        ready = self._ready[time_ms]
        ready.sort()
        end = bisect_right(ready.positions, last, ready.at)
        kept = array("q")
        for each in ready.positions[ready.at : end]:
            if is_taken(time_ms, each):
                taken.append(each)
            else:
                kept.append(each)
        ready.at = end
        if kept:
            ready.positions, ready.at = kept + ready.positions[end:], 0
        elif ready.at > _TRIMMED and ready.at * 2 > len(ready.positions):
            ready.positions, ready.at = ready.positions[ready.at :], 0
        if ready.at < len(ready.positions):
            return True
        del self._ready[time_ms]
        return False

    @staticmethod
    def _take_later(
        buckets: dict[int, _Bucket], number: int, width_ms: int, is_taken: Callable[[int, int], bool], taken: list[int]
    ) -> None:
        bucket, begin_ms, kept = buckets[number], number * width_ms, _Bucket()
        for delay_ms, position in zip(bucket.delays, bucket.positions, strict=True):
            if is_taken(begin_ms + delay_ms, position):
                taken.append(position)
            else:
                kept.delays.append(delay_ms)
                kept.positions.append(position)
        if kept.delays:
            buckets[number] = kept
        else:
            del buckets[number]
