"""The start offset of each leader epoch: `leader-epoch-checkpoint` (KIP-101, KIP-279)."""

from __future__ import annotations

from bisect import bisect_right

from kpybroker.storage.files.checkpoint_files import read_rows, write_rows
from kpybroker.world import Disk

FILE_NAME = "leader-epoch-checkpoint"


class LeaderEpochs:
    """(epoch, start offset) pairs, both in ascending order. A change is written at once unless `save=False`, but not
    synced.

    Unsaved entries can be read again from the batches above the recovery point.
    """

    __slots__ = ("_disk", "_path", "entries", "latest", "noted", "unsaved")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self.entries: list[tuple[int, int]] = []
        self.latest = -1
        """The newest epoch; -1 if there is none."""
        self.noted = -2
        """The epoch whose batches need no further entry; -2 if the next batch must be examined."""
        self.unsaved = False
        """Whether the file lacks entries."""

    def moved(self, directory: str) -> None:
        """The log's directory has been renamed."""
        self._path = f"{directory}/{FILE_NAME}"

    def load(self) -> None:
        """Load the file. Raises Damage if it is not a valid one."""
        self.entries = sorted((int(epoch), int(start)) for epoch, start in read_rows(self._disk, self._path, 2))
        self._changed()
        self.noted, self.unsaved = self.latest, False

    def save_if_changed(self) -> None:
        if self.unsaved:
            self.save()

    def save(self) -> None:
        """Save the entries. Raises OSError, after which they are still unsaved."""
        write_rows(self._disk, self._path, [f"{epoch} {start}" for epoch, start in self.entries])
        self.unsaved = False

    def _changed(self) -> None:
        self.noted, self.unsaved = -2, True
        self.latest = self.entries[-1][0] if self.entries else -1

    def assign(self, epoch: int, start: int, *, save: bool = True) -> None:
        """`epoch` begins at `start`. An entry that contradicts this was never committed, and is removed."""
        if epoch < 0 or epoch <= self.latest:
            return
        while self.entries and self.entries[-1][1] >= start:
            self.entries.pop()
        self.entries.append((epoch, start))
        self._changed()
        if save:
            self.save()

    def note(self, epoch: int, start: int) -> None:
        """A batch of `epoch` is appended at `start`. Not saved."""
        self.assign(epoch, start, save=False)
        self.noted = self.latest

    def copy(self, other: LeaderEpochs) -> None:
        """Copy the entries of a log with the same records: an epoch may have no batch. Not saved."""
        if self.entries != other.entries:
            self.entries = list(other.entries)
            self._changed()

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote `offset`; -1 if it is unknown."""
        found = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[found - 1][0] if found else -1

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """(largest epoch at or below `epoch`, the offset where it ended); (-1, -1) for an unknown or future epoch."""
        if epoch == self.latest and epoch >= 0:
            return epoch, log_end
        above = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        if epoch < 0 or above == len(self.entries):
            return -1, -1
        return (self.entries[above - 1][0] if above else epoch), self.entries[above][1]

    def cut_end(self, offset: int, *, save: bool = True) -> None:
        """Remove epochs that began at or after `offset` (0: all)."""
        kept = [entry for entry in self.entries if entry[1] < offset]
        if len(kept) != len(self.entries):
            self.entries = kept
            self._changed()
            if save:
                self.save()

    def cut_start(self, offset: int, *, save: bool = True) -> None:
        """Remove epochs that ended at or before `offset`; the epoch at that offset now begins there."""
        kept = [entry for entry in self.entries if entry[1] > offset]
        below = len(self.entries) - len(kept)
        if below == 0 or self.entries[below - 1][1] == offset == self.entries[0][1]:
            return
        self.entries = [(self.entries[below - 1][0], offset), *kept]
        self._changed()
        if save:
            self.save()
