"""The start offset of each leader epoch: `leader-epoch-checkpoint` (KIP-101, KIP-279)."""

from __future__ import annotations

from bisect import bisect_right

from kpybroker.storage.files.checkpoint_files import read_rows, write_rows
from kpybroker.world import Disk

FILE_NAME = "leader-epoch-checkpoint"


class LeaderEpochs:
    """The leader epochs of a log, as ascending pairs of epoch and start offset. Changes are written at once, without a
    sync, unless `save=False`.

    Entries that were not saved can be restored from the batches above the recovery point.
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
        """Whether there are changes that the file does not contain."""

    def moved(self, directory: str) -> None:
        """Set the new path, because the log's directory has been renamed."""
        self._path = f"{directory}/{FILE_NAME}"

    def load(self) -> None:
        """Load the file. Raises Damage if it is invalid."""
        self.entries = sorted((int(epoch), int(start)) for epoch, start in read_rows(self._disk, self._path, 2))
        self._changed()
        self.noted, self.unsaved = self.latest, False

    def save_if_changed(self) -> None:
        if self.unsaved:
            self.save()

    def save(self) -> None:
        """Save the entries. Raises OSError, in which case they remain unsaved."""
        write_rows(self._disk, self._path, [f"{epoch} {start}" for epoch, start in self.entries])
        self.unsaved = False

    def _changed(self) -> None:
        self.noted, self.unsaved = -2, True
        self.latest = self.entries[-1][0] if self.entries else -1

    def assign(self, epoch: int, start: int, *, save: bool = True) -> None:
        """Add an epoch that begins at `start`. Contradicting entries belong to records that were never committed, and
        are removed."""
        if epoch < 0 or epoch <= self.latest:
            return
        while self.entries and self.entries[-1][1] >= start:
            self.entries.pop()
        self.entries.append((epoch, start))
        self._changed()
        if save:
            self.save()

    def note(self, epoch: int, start: int) -> None:
        """Add the epoch of a batch that is appended at `start`, without saving."""
        self.assign(epoch, start, save=False)
        self.noted = self.latest

    def copy(self, other: LeaderEpochs) -> None:
        """Copy the entries of a log with the same records, without saving. They include epochs without batches."""
        if self.entries != other.entries:
            self.entries = list(other.entries)
            self._changed()

    def epoch_at(self, offset: int) -> int:
        """The epoch of the record at `offset`; -1 if it is unknown."""
        found = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[found - 1][0] if found else -1

    def end_of(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest epoch that is at most `epoch`, and its end offset; (-1, -1) for an unknown or future epoch."""
        if epoch == self.latest and epoch >= 0:
            return epoch, log_end
        above = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        if epoch < 0 or above == len(self.entries):
            return -1, -1
        return (self.entries[above - 1][0] if above else epoch), self.entries[above][1]

    def cut_end(self, offset: int, *, save: bool = True) -> None:
        """Remove epochs that began at or after `offset`."""
        kept = [entry for entry in self.entries if entry[1] < offset]
        if len(kept) != len(self.entries):
            self.entries = kept
            self._changed()
            if save:
                self.save()

    def cut_start(self, offset: int, *, save: bool = True) -> None:
        """Remove epochs that ended at or before `offset`. The epoch at that offset then begins there."""
        kept = [entry for entry in self.entries if entry[1] > offset]
        below = len(self.entries) - len(kept)
        if below == 0 or self.entries[below - 1][1] == offset == self.entries[0][1]:
            return
        self.entries = [(self.entries[below - 1][0], offset), *kept]
        self._changed()
        if save:
            self.save()
