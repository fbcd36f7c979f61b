"""Where two metadata logs part, told by their leader epochs (KIP-595, "Fetch"; KIP-630 for what only snapshots have).

`epochs` are (epoch, first offset) pairs, both growing, as `leader-epoch-checkpoint` has them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from kpybroker.raft.core.state import Tail

Epochs = Sequence[tuple[int, int]]


class Agrees(NamedTuple):
    """The follower's log is a beginning of the leader's: send what comes next."""


class Diverges(NamedTuple):
    """Tell the follower: the leader's largest epoch up to the follower's last one, and where it ended."""

    epoch: int
    end: int


class NeedsSnapshot(NamedTuple):
    """The leader's log begins later than the follower's ends, or cannot tell whether they agree."""


def end_of_epoch(epochs: Epochs, epoch: int, end: int) -> Tail:
    """The largest epoch at or below `epoch`, and where it ended, in a log that ends at `end`.

    One that is below all known ones ended where the first of them began.
    """
    above = bisect_right(epochs, epoch, key=lambda entry: entry[0])
    ended = epochs[above][1] if above < len(epochs) else end
    return Tail(epochs[above - 1][0] if above else epoch, ended)


def compare(
    epochs: Epochs, start: int, end: int, oldest_snapshot: Tail | None, fetched: Tail
) -> Agrees | Diverges | NeedsSnapshot:
    """What a leader with a log from `start` to `end` answers to a fetch from `fetched.end` on, after `fetched.epoch`.

    oldest_snapshot: its end is `start`, unless that is 0.
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
    """Where a follower's log may still agree with what the leader told of its own."""
    ours = end_of_epoch(epochs, told.epoch, end)
    return min(ours.end, told.end) if ours.epoch == told.epoch else ours.end
