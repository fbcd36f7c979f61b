"""Stretches of the sources of views without a match, so that they are read and decompressed once, and not for each
consumer of a view.

A stretch ends before a batch with a matching record and before a control batch. It contains only committed records, and
is forgotten when the log is truncated or its files are replaced.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import NamedTuple

STRETCHES_MAX = 50_000
"""The most stretches that a broker keeps, which take about 15 MB. Those of the view that was read longest ago are
forgotten first."""
STRETCH_MIN_BYTES = 256 << 10
"""The smallest stretch that is kept, unless it continues another one. Reading it takes as long as a Fetch costs."""


class Scanned(NamedTuple):
    """What was read: the topic id and the number of a partition, and the expression of the view."""

    topic_id: bytes
    partition: int
    where: str


class Stretch(NamedTuple):
    """The offsets from `begin` up to `end` (exclusive), of which the view has no record. `last` is the batch without
    records that stands for the last one of them."""

    begin: int
    end: int
    last: bytes


class _Kept:
    """The stretches of one view in one partition, by their first offsets."""

    __slots__ = ("found", "generation")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.found: list[Stretch] = []


class Stretches:
    """The stretches that one broker keeps. `generation`: that of the log's files, with which a stretch is valid."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Scanned, _Kept] = OrderedDict()
        self.count = 0

    def find(self, scanned: Scanned, generation: int, offset: int, upper: int) -> Stretch | None:
        """The stretch that contains this offset, and ends at or below `upper`."""
        kept = self._of(scanned, generation)
        if kept is None:
            return None
        at = bisect_right(kept.found, offset, key=_begin) - 1
        if at < 0 or not offset < kept.found[at].end <= upper:
            return None
        return kept.found[at]

    def add(self, scanned: Scanned, generation: int, stretch: Stretch, size_bytes: int) -> None:
        """Keep a stretch of this size, or add it to the one that ends where it begins."""
        kept = self._of(scanned, generation)
        at = 0 if kept is None else bisect_left(kept.found, stretch.begin, key=_begin)
        if kept is not None and at and kept.found[at - 1].end >= stretch.begin:
            before = kept.found[at - 1]
            if stretch.end > before.end:
                kept.found[at - 1] = before._replace(end=stretch.end, last=stretch.last)
            return
        if size_bytes < STRETCH_MIN_BYTES:
            return
        if kept is None:
            kept = self._kept[scanned] = _Kept(generation)
        kept.found.insert(at, stretch)
        self.count += 1
        while self.count > STRETCHES_MAX and len(self._kept) > 1:
            self._forget(next(iter(self._kept)))
        if self.count > STRETCHES_MAX:
            self._forget(scanned)

    def _of(self, scanned: Scanned, generation: int) -> _Kept | None:
        kept = self._kept.get(scanned)
        if kept is None:
            return None
        if kept.generation != generation:
            self._forget(scanned)
            return None
        self._kept.move_to_end(scanned)
        return kept

    def _forget(self, scanned: Scanned) -> None:
        self.count -= len(self._kept.pop(scanned).found)


def _begin(stretch: Stretch) -> int:
    return stretch.begin
