"""The segments of a log, in the order of their offsets. The last one is the active segment."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from kpybroker.storage.files.segment import Segment


class Segments:
    """The list of a log's segments, which is never empty."""

    __slots__ = ("_bases", "_list", "active", "any_aborted")

    def __init__(self, segments: list[Segment]) -> None:
        self._list = segments
        self._bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        self.any_aborted = False
        """Whether any segment may have entries in its transaction index. In most logs, none has."""

    def __len__(self) -> int:
        return len(self._list)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._list)

    def __getitem__(self, number: int) -> Segment:
        return self._list[number]

    @property
    def first(self) -> Segment:
        return self._list[0]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._list)

    def number_for(self, offset: int) -> int:
        """The index of the segment that contains `offset`; 0 if `offset` is below the first segment."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def first_in_doubt(self, recovery_point: int) -> int:
        """The index of the first segment that a crash may have damaged. It may be a segment that ends at the recovery
        point: its records are on disk, but its indexes may not be, because they are synced only after a roll."""
        return self.number_for(recovery_point - 1)

    def holding(self, offset: int) -> Segment:
        active = self.active
        return active if offset >= active.base_offset else self._list[self.number_for(offset)]

    def after(self, segment: Segment) -> Segment | None:
        """The segment after `segment`; None if it is the last one."""
        number = bisect_right(self._bases, segment.base_offset)
        return self._list[number] if number < len(self._list) else None

    def note_aborted(self) -> None:
        """Store that a segment contains an aborted transaction."""
        self.any_aborted = True

    def add(self, segment: Segment) -> None:
        assert not self._bases or segment.base_offset > self._bases[-1], "a new segment begins after all others"
        self._list.append(segment)
        self._bases.append(segment.base_offset)
        self.active = segment

    def take_first(self, count: int) -> list[Segment]:
        """Remove and return the `count` oldest segments. At least one segment must remain."""
        assert count < len(self._list), "a log keeps a segment"
        taken = self._list[:count]
        del self._list[:count], self._bases[:count]
        return taken

    def take_after(self, number: int) -> list[Segment]:
        """Remove and return the segments after index `number`."""
        taken = self._list[number + 1 :]
        del self._list[number + 1 :], self._bases[number + 1 :]
        self.active = self._list[-1]
        return taken

    def replace(self, old: list[Segment], new: Segment) -> None:
        """Replace neighbouring inactive segments with one segment that has the base offset of the first."""
        number = self.number_for(new.base_offset)
        assert self._list[number : number + len(old)] == old, "the replaced segments are in this log"
        assert self.active is not old[-1], "the active segment is not replaced"
        self._list[number : number + len(old)] = [new]
        self._bases[number : number + len(old)] = [new.base_offset]

    def replace_all(self, segment: Segment) -> list[Segment]:
        """Replace all segments with an empty one, and return the old segments."""
        taken = self._list
        self._list, self._bases, self.active = [segment], [segment.base_offset], segment
        return taken
