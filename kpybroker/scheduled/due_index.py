"""An index of pending records by due time: a hierarchical timing wheel, of which only the next records are sorted.

Records that are due later are in buckets of an hour, a minute and a second, unsorted, with 12 bytes each: one million
of them take 12 MB. Records of the next second are in a sorted list.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable

WIDTHS_MS = (3_600_000, 60_000, 1000)
"""The widths of the buckets. A record that is due within a bucket of one width that has begun is in a narrower one."""
_SHIFT = 64
_MASK = (1 << _SHIFT) - 1
_DUE_MAX = (1 << 63) - 1
_TRIMMED = 10_000


class _Bucket:
    """The records that are due in one interval: the time since its begin, and the position."""

    __slots__ = ("delays", "positions")

    def __init__(self) -> None:
        self.delays = array("I")
        self.positions = array("q")


class DueIndex:
    """Pairs of a due time and a position, in ascending order. Each pair is in it at most once."""

    __slots__ = ("_at", "_begun_ms", "_fresh", "_levels", "_near", "_size")

    def __init__(self) -> None:
        self._near: list[int] = []
        """The next records, sorted: due time and position in one number. Those before `_at` have been taken."""
        self._at = 0
        self._fresh: list[int] = []
        """Records that belong to `_near`, but are not sorted in yet."""
        self._begun_ms = 0
        """All records that are due before this time are in `_near` or `_fresh`. A multiple of the narrowest width."""
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
            if not begin_ms <= due_ms < end_ms:
                due_ms = min(due_ms, _DUE_MAX)
                if due_ms < self._begun_ms:
                    self._fresh.append(due_ms << _SHIFT | position)
                    position += 1
                    continue
                bucket, begin_ms, end_ms = self._bucket_for(due_ms)
            bucket.delays.append(due_ms - begin_ms)
            bucket.positions.append(position)
            position += 1
        self._size += position - before

    def _bucket_for(self, due_ms: int) -> tuple[_Bucket, int, int]:
        """The widest bucket for this time that has not begun, or the narrowest one, with its begin and end."""
        for level, width_ms in enumerate(WIDTHS_MS):
            number = due_ms // width_ms
            if number * width_ms >= self._begun_ms or level == len(WIDTHS_MS) - 1:
                break
        buckets = self._levels[level]
        bucket = buckets.get(number)
        if bucket is None:
            bucket = buckets[number] = _Bucket()
        return bucket, number * width_ms, (number + 1) * width_ms

    def _begin(self, until_ms: int) -> None:
        """Make all records that are due up to `until_ms` part of `_near`."""
        width_ms = WIDTHS_MS[-1]
        begun_ms = (until_ms // width_ms + 1) * width_ms
        if begun_ms > self._begun_ms:
            self._begun_ms = begun_ms
            for level, width_ms in enumerate(WIDTHS_MS):
                buckets = self._levels[level]
                for number in sorted(number for number in buckets if number * width_ms < begun_ms):
                    self._narrow(buckets.pop(number), number * width_ms)
        if self._fresh:
            self._near = sorted(self._near[self._at :] + self._fresh)
            self._fresh, self._at = [], 0

    def _narrow(self, bucket: _Bucket, begin_ms: int) -> None:
        """Move the records of a bucket that has begun to narrower ones, or to `_fresh`."""
        begun_ms, fresh = self._begun_ms, self._fresh
        into, into_begin_ms, into_end_ms = bucket, 0, 0
        for delay_ms, position in zip(bucket.delays, bucket.positions, strict=True):
            due_ms = begin_ms + delay_ms
            if due_ms < begun_ms:
                fresh.append(due_ms << _SHIFT | position)
                continue
            if not into_begin_ms <= due_ms < into_end_ms:
                into, into_begin_ms, into_end_ms = self._bucket_for(due_ms)
            into.delays.append(due_ms - into_begin_ms)
            into.positions.append(position)

    def first(self, until_ms: int, most: int) -> list[tuple[int, int]]:
        """The first records that are due up to `until_ms`, at most `most`: due time and position."""
        self._begin(until_ms)
        end = bisect_right(self._near, until_ms << _SHIFT | _MASK, self._at)
        return [(each >> _SHIFT, each & _MASK) for each in self._near[self._at : min(end, self._at + most)]]

    def next_due_ms(self) -> int | None:
        """A time before which no record is due, and which is exact for the next records; None if it is empty."""
        found = [self._near[self._at] >> _SHIFT] if self._at < len(self._near) else []
        if self._fresh:
            found.append(min(self._fresh) >> _SHIFT)
        if not found:
            for buckets, width_ms in zip(self._levels, WIDTHS_MS, strict=True):
                if buckets:
                    found.append(min(buckets) * width_ms)
        return min(found, default=None)

    def take(self, due_ms: int, position: int, is_taken: Callable[[int, int], bool]) -> list[int]:
        """Remove the records up to a place in time for which `is_taken` holds, and return their positions."""
        self._begin(due_ms)
        end = bisect_right(self._near, due_ms << _SHIFT | position, self._at)
        taken = []
        for each in self._near[self._at : end]:
            if is_taken(each >> _SHIFT, each & _MASK):
                taken.append(each & _MASK)
            else:
                self._fresh.append(each)
        self._size -= len(taken)
        self._at = end
        if self._at > _TRIMMED and self._at * 2 > len(self._near):
            del self._near[: self._at]
            self._at = 0
        return taken
