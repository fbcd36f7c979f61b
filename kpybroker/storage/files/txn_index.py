"""The transaction index of a segment: the aborted transactions with a marker in the segment, in the order of markers.

An entry has 34 bytes: version int16 = 0, producer id int64, first offset int64, last offset int64 (that of the marker),
and the last stable offset int64 after the marker. Source: KIP-98. If there are no entries, there is no file.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from kpybroker.errors import Damage
from kpybroker.world import Disk

_ENTRY = Struct(">hqqqq")
_VERSION = 0


class AbortedTransaction(NamedTuple):
    """One entry. All transactions below `last_stable` had been completed when the entry was written."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable: int


class TxnIndex:
    """The index is in memory from its first use until `drop`. New entries are saved with the other indexes of the
    segment."""

    __slots__ = ("_disk", "_entries", "_path", "_saved")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._entries: list[AbortedTransaction] | None = None
        self._saved = 0
        """The number of entries in the file."""

    def moved(self, path: str) -> None:
        """Set the new path, because the log's directory has been renamed."""
        self._path = path

    def load(self) -> None:
        """Read the file into memory. Raises OSError, Damage."""
        self._load()

    def __len__(self) -> int:
        return len(self._load())

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return iter(self._load())

    def begin(self) -> None:
        """Begin with an empty index, without reading the file."""
        self._entries, self._saved = [], 0

    def _load(self) -> list[AbortedTransaction]:
        """The entries, read from the file if necessary. Raises OSError, Damage."""
        if self._entries is None:
            self._entries = self._read()
            self._saved = len(self._entries)
        return self._entries

    def _read(self) -> list[AbortedTransaction]:
        try:
            handle = self._disk.open(self._path)
        except FileNotFoundError:
            return []
        try:
            content = self._disk.pread(handle, self._disk.size(handle), 0)
        finally:
            self._disk.close(handle)
        content = content[: len(content) - len(content) % _ENTRY.size]
        found = []
        for version, *entry in _ENTRY.iter_unpack(content):
            if version != _VERSION:
                raise Damage(
                    f"{self._path}: an entry of version {version}, but this kpybroker reads only version {_VERSION}"
                )
            found.append(AbortedTransaction(*entry))
        return found

    def add(self, aborted: AbortedTransaction) -> None:
        self._load().append(aborted)

    def within(self, offset: int, upper: int) -> tuple[list[AbortedTransaction], bool]:
        """The transactions with records from `offset` on and below `upper`, and whether the result is complete, so that
        later segments need not be searched."""
        found = []
        for aborted in self._load():
            if aborted.last_offset >= offset and aborted.first_offset < upper:
                found.append(aborted)
            if aborted.last_stable >= upper:
                return found, True
        return found, False

    def cut(self, offset: int) -> None:
        """Remove the entries of markers at and after `offset`, from memory and the file. Raises OSError, Damage."""
        self._replace([aborted for aborted in self._load() if aborted.last_offset < offset])

    def clear(self) -> None:
        """Remove all entries and the file, whatever it contains. Raises OSError."""
        self._replace([])

    def _replace(self, kept: list[AbortedTransaction]) -> None:
        self._entries = kept
        self._saved = min(self._saved, len(kept))
        if not kept:
            if self._disk.exists(self._path):
                self._disk.unlink(self._path)
            return
        handle = self._disk.open(self._path, create=True)
        try:
            self._disk.truncate(handle, self._saved * _ENTRY.size)
        finally:
            self._disk.close(handle)

    def save(self) -> None:
        """Write the entries that are not in the file yet. Raises OSError."""
        if self._entries is None or self._saved == len(self._entries):
            return
        fresh = b"".join(_ENTRY.pack(_VERSION, *aborted) for aborted in self._entries[self._saved :])
        handle = self._disk.open(self._path, create=True)
        try:
            self._disk.pwritev(handle, [fresh], self._saved * _ENTRY.size)
        finally:
            self._disk.close(handle)
        self._saved = len(self._entries)

    def drop(self) -> None:
        """Free the memory. Entries that were not saved are lost."""
        self._entries = None
