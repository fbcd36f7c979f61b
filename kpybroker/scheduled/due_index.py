"""An index of pending records by due time: a hierarchical timing wheel.

Records that are due later are in buckets of an hour, a minute and a second, unsorted, with 12 bytes each: one million
of them take 12 MB. A bucket consists of chunks, because a large array moves in memory when it grows, and leaves holes.
The records of the earliest seconds are in buckets of a millisecond, in order.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence

WIDTHS_MS = (3_600_000, 60_000, 1000)
"""The widths of the buckets. A bucket is divided into narrower ones when its first records are wanted."""
_DUE_MAX = (1 << 63) - 1
_TRIMMED = 10_000
CHUNK = 10_000
"""A chunk with this many records is full. The records of a chunk are moved to narrower buckets at once, in a few
milliseconds."""


class _Chunk:
    """Some of the records that are due in one interval: the time since its begin, and the position."""

    __slots__ = ("delays", "positions")

    def __init__(self) -> None:
        self.delays = array("I")
        self.positions = array("q")

    def trim(self) -> None:
        """Return the memory that was allocated for more records."""
        self.delays, self.positions = self.delays[:], self.positions[:]


class _Bucket:
    """The records that are due in one interval, in the order in which they were added."""

    __slots__ = ("_full", "chunks")

    def __init__(self, full: int) -> None:
        self._full = full
        self.chunks: deque[_Chunk] = deque()

    def room(self) -> _Chunk:
        """The chunk to which the next records are added."""
        if self.chunks and len(self.chunks[-1].delays) < self._full:
            return self.chunks[-1]
        if self.chunks:
            self.chunks[-1].trim()
        self.chunks.append(_Chunk())
        return self.chunks[-1]


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

    __slots__ = ("_begun_ms", "_chunk", "_levels", "_ready", "_size", "_times")

    def __init__(self, chunk: int = CHUNK) -> None:
        self._chunk = chunk
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

    def add(self, dues_ms: Sequence[int], position: int) -> None:
        """Add records with consecutive positions, the first of which is `position`."""
        for first in range(0, len(dues_ms), self._chunk):
            self._add(dues_ms[first : first + self._chunk], position + first)
        self._size += len(dues_ms)

    def _add(self, dues_ms: Sequence[int], position: int) -> None:
        """Add at most as many records as a chunk has. They often belong in one bucket."""
        first_ms = min(dues_ms)
        if first_ms >= self._begun_ms:
            chunk, begin_ms, end_ms = self._room_for(first_ms)
            if max(dues_ms) < end_ms:
                chunk.delays.extend([due_ms - begin_ms for due_ms in dues_ms])
                chunk.positions.extend(range(position, position + len(dues_ms)))
                return
        begin_ms = end_ms = 0
        chunk = _Chunk()
        for due_ms in dues_ms:
            if not begin_ms <= due_ms < end_ms:
                if due_ms < self._begun_ms:
                    self._add_ready(due_ms, (position,))
                    position += 1
                    continue
                chunk, begin_ms, end_ms = self._room_for(due_ms)
            chunk.delays.append(due_ms - begin_ms)
            chunk.positions.append(position)
            position += 1

    def _add_ready(self, due_ms: int, positions: Sequence[int]) -> None:
        ready = self._ready.get(due_ms)
        if ready is None:
            ready = self._ready[due_ms] = _Ready()
            insort(self._times, due_ms)
        ready.add(positions)

    def _room_for(self, due_ms: int) -> tuple[_Chunk, int, int]:
        """A chunk of the widest bucket for this time that has not begun, or of the narrowest one, with its begin and
        end."""
        for level, width_ms in enumerate(WIDTHS_MS):
            number = due_ms // width_ms
            if number * width_ms >= self._begun_ms or level == len(WIDTHS_MS) - 1:
                break
        return self._room_at(level, due_ms)

    def _room_at(self, level: int, due_ms: int) -> tuple[_Chunk, int, int]:
        buckets, width_ms = self._levels[level], WIDTHS_MS[level]
        number = due_ms // width_ms
        bucket = buckets.get(number)
        if bucket is None:
            bucket = buckets[number] = _Bucket(self._chunk)
        return bucket.room(), number * width_ms, (number + 1) * width_ms

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
        while bucket.chunks:
            chunk = bucket.chunks.popleft()
            if is_narrowest:
                self._make_ready(begin_ms, chunk)
            else:
                self._narrow(level + 1, begin_ms, chunk)
            yield
        if self._levels[level].get(begin_ms // WIDTHS_MS[level]) is bucket:
            del self._levels[level][begin_ms // WIDTHS_MS[level]]

    def _narrow(self, level: int, begin_ms: int, chunk: _Chunk) -> None:
        """Move records to buckets of a level. They often belong in one bucket."""
        delays, positions = chunk.delays, chunk.positions
        into, into_begin_ms, into_end_ms = self._room_at(level, begin_ms + min(delays))
        if begin_ms + max(delays) < into_end_ms:
            earlier_ms = into_begin_ms - begin_ms
            into.delays.extend([delay_ms - earlier_ms for delay_ms in delays])
            into.positions.extend(positions)
            return
        into_begin_ms = into_end_ms = 0
        for delay_ms, position in zip(delays, positions, strict=True):
            due_ms = begin_ms + delay_ms
            if not into_begin_ms <= due_ms < into_end_ms:
                into, into_begin_ms, into_end_ms = self._room_at(level, due_ms)
            into.delays.append(due_ms - into_begin_ms)
            into.positions.append(position)

    def _make_ready(self, begin_ms: int, chunk: _Chunk) -> None:
        if min(chunk.delays) == max(chunk.delays):
            self._add_ready(begin_ms + chunk.delays[0], chunk.positions)
            return
        by_delay: dict[int, list[int]] = {}
        for delay_ms, position in zip(chunk.delays, chunk.positions, strict=True):
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

    def take(
        self, due_ms: int, position: int, end: int, is_taken: Callable[[int, int], bool] | None = None
    ) -> list[int]:
        """Remove the records up to a place in time: those at positions below `end` and, if it is given, for which
        `is_taken` holds. Returns their positions, unordered."""
        taken: list[int] = []
        within = bisect_right(self._times, due_ms)
        kept_times = []
        for time_ms in self._times[:within]:
            last = min(position if time_ms == due_ms else _DUE_MAX, end - 1)
            if self._take_ready(time_ms, last, is_taken, taken):
                kept_times.append(time_ms)
        self._times[:within] = kept_times

        def is_within(*of: int) -> bool:
            return of <= (due_ms, position) and of[1] < end and (is_taken is None or is_taken(*of))

        for buckets, width_ms in zip(self._levels, WIDTHS_MS, strict=True):
            for number in [number for number in buckets if number * width_ms <= due_ms]:
                self._take_later(buckets, number, width_ms, is_within, taken)
        self._size -= len(taken)
        return taken

    def _take_ready(
        self, time_ms: int, last: int, is_taken: Callable[[int, int], bool] | None, taken: list[int]
    ) -> bool:
        """Take records of one millisecond. Returns whether some are left."""
        ready = self._ready[time_ms]
        ready.sort()
        end = bisect_right(ready.positions, last, ready.at)
        found, kept = ready.positions[ready.at : end], array("q")
        if is_taken is None:
            taken += found
        else:
            for each in found:
                (taken if is_taken(time_ms, each) else kept).append(each)
        ready.at = end
        if kept:
            ready.positions, ready.at = kept + ready.positions[end:], 0
        elif ready.at > _TRIMMED and ready.at * 2 > len(ready.positions):
            ready.positions, ready.at = ready.positions[ready.at :], 0
        if ready.at < len(ready.positions):
            return True
        del self._ready[time_ms]
        return False

    def _take_later(
        self,
        buckets: dict[int, _Bucket],
        number: int,
        width_ms: int,
        is_taken: Callable[[int, int], bool],
        taken: list[int],
    ) -> None:
        begin_ms, kept = number * width_ms, _Bucket(self._chunk)
        for chunk in buckets[number].chunks:
            room = kept.room()
            for delay_ms, position in zip(chunk.delays, chunk.positions, strict=True):
                if is_taken(begin_ms + delay_ms, position):
                    taken.append(position)
                else:
                    room.delays.append(delay_ms)
                    room.positions.append(position)
        if kept.chunks and not kept.chunks[-1].delays:
            kept.chunks.pop()
        if kept.chunks:
            buckets[number] = kept
        else:
            del buckets[number]
