"""Finds the offset at which two metadata logs diverge, by their leader epochs (KIP-595, "Fetch"; KIP-630 for
snapshots).

`epochs` are (epoch, first offset) pairs, both ascending, as in `leader-epoch-checkpoint`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from kpybroker.raft.core.state import Tail

Epochs = Sequence[tuple[int, int]]


class Agrees(NamedTuple):
    """The follower's log is a prefix of the leader's: send the next records."""


class Diverges(NamedTuple):
    """The logs diverge. `epoch` is the largest epoch in the leader's log that is not above the follower's last epoch,
    and `end` is the end offset of that epoch."""

    epoch: int
    end: int


class NeedsSnapshot(NamedTuple):
    """The leader's log starts after the end of the follower's log, or too late to determine whether the two agree."""


def end_of_epoch(epochs: Epochs, epoch: int, end: int) -> Tail:
    """The largest epoch at or below `epoch` in a log that ends at `end`, and the end offset of that epoch. An epoch
    below all known epochs ends at the start of the first known one.
    """
    above = bisect_right(epochs, epoch, key=lambda entry: entry[0])
    ended = epochs[above][1] if above < len(epochs) else end
    return Tail(epochs[above - 1][0] if above else epoch, ended)


def compare(
    epochs: Epochs, start: int, end: int, oldest_snapshot: Tail | None, fetched: Tail
) -> Agrees | Diverges | NeedsSnapshot:
    """Compare the leader's log, from `start` to `end`, with a follower's log that ends with `fetched`.

    `oldest_snapshot` ends at `start`, unless `start` is 0.
    """
    if start == 0 and fetched.end == 0:
        return Agrees()
    if fetched.end < start:
        return NeedsSnapshot()
    if oldest_snapshot is not None and (
        fetched.epoch < oldest_snapshot.epoch
        or (fetched.end == oldest_snapshot.end == start and fetched.epoch != oldest_snapshot.epoch)
    ):
        return NeedsSnapshot()
    ours = end_of_epoch(epochs, fetched.epoch, end)
    if ours.epoch == fetched.epoch and fetched.end <= ours.end:
        return Agrees()
    return Diverges(ours.epoch, ours.end)


def truncation(epochs: Epochs, end: int, told: Diverges) -> int:
    """The offset to which a follower truncates its log. Below this offset, the log may agree with the leader's log."""
    ours = end_of_epoch(epochs, told.epoch, end)
    return min(ours.end, told.end) if ours.epoch == told.epoch else ours.end
