"""A new segment that cleaning writes to files ending in `.cleaned`, on another thread."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kpybroker.errors import Damage
from kpybroker.storage.files.index import OffsetIndex, TimeIndex
from kpybroker.storage.files.segment import INDEX, LOG, TIME_INDEX, TXN_INDEX, Segment
from kpybroker.storage.files.txn_index import AbortedTransaction, TxnIndex
from kpybroker.storage.log.swapping import CLEANED
from kpybroker.wire.records.batch import Batch
from kpybroker.world import Buffer, Disk

_WRITE_BYTES = 1 << 20
SIZE_LIMIT_BYTES = (1 << 31) - 1
"""The size limit of a segment, because positions in the index have 32 bits. Batches may grow when a delete horizon is
set."""


class CleanedSegment:
    """The new segment `target`. Batches are added in the order of their offsets. Nothing else writes to its files."""

    def __init__(self, disk: Disk, target: Segment, index_interval_bytes: int) -> None:
        self._disk = disk
        self.target = target
        self._interval_bytes = index_interval_bytes
        self._index = OffsetIndex(target.base_offset)
        self._times = TimeIndex(target.base_offset)
        self._aborted: list[AbortedTransaction] = []
        self._queue: list[Buffer] = []
        self._queued_bytes = 0
        self._size_bytes = 0
        self._since_entry_bytes = 0

    async def add(self, view: Buffer) -> None:
        """Add a whole batch. Its bytes must not change until `finish` has returned. Raises OSError, Damage."""
        batch, target = Batch(memoryview(view)), self.target
        if self._size_bytes + batch.size_bytes > SIZE_LIMIT_BYTES:
            raise Damage(f"{target.path}: cleaned, it would have more than {SIZE_LIMIT_BYTES} bytes")
        target.note_cleaned_batch(batch)
        if self._since_entry_bytes > self._interval_bytes:
            self._index.add(batch.last_offset, self._size_bytes)
            self._times.add(target.max_timestamp, target.max_timestamp_offset)
            self._since_entry_bytes = 0
        self._size_bytes += batch.size_bytes
        self._since_entry_bytes += batch.size_bytes
        self._queued_bytes += batch.size_bytes
        self._queue.append(view)
        if self._queued_bytes >= _WRITE_BYTES:
            await self._write()

    def add_aborted(self, aborted: AbortedTransaction) -> None:
        """Add an entry to the transaction index, for an aborted transaction whose marker is kept."""
        self._aborted.append(aborted)

    async def _write(self) -> None:
        queue, self._queue = self._queue, []
        position = self._size_bytes - self._queued_bytes
        self._queued_bytes = 0
        await self._disk.off_loop(partial(_write_at, self._disk, self._path(LOG), queue, position), self._path(LOG))

    def _path(self, suffix: str) -> str:
        return self.target.path + suffix + CLEANED

    async def finish(self) -> Segment:
        """Write and sync all files. Return the segment, which can then replace the old ones. Raises OSError."""
        await self._write()
        target = self.target
        target.end_cleaned(self._size_bytes, len(self._index), self._since_entry_bytes)
        if target.max_timestamp >= 0:
            self._times.add(target.max_timestamp, target.max_timestamp_offset)
        await self._disk.off_loop(self._write_indexes, self._path(LOG))
        handle = self._disk.open(self._path(LOG))
        try:
            await self._disk.sync(handle)  # not on the disk's thread, because requests may be waiting for it
        finally:
            self._disk.close(handle)
        return target

    def _write_indexes(self) -> None:
        disk = self._disk
        for index, suffix in ((self._index, INDEX), (self._times, TIME_INDEX)):
            _write_at(disk, self._path(suffix), [bytes(index.entries)], 0)
        if self._aborted:
            aborted = TxnIndex(disk, self._path(TXN_INDEX))
            aborted.clear()
            for one in self._aborted:
                aborted.add(one)
            aborted.save()
        for suffix in (INDEX, TIME_INDEX, TXN_INDEX) if self._aborted else (INDEX, TIME_INDEX):
            _sync(disk, self._path(suffix))

    @property
    def has_aborted(self) -> bool:
        return bool(self._aborted)


def _write_at(disk: Disk, path: str, buffers: Sequence[Buffer], position: int) -> None:
    """Write buffers to a file. The file is opened for each write, so that an abandoned cleaning leaves no open
    handle."""
    handle = disk.open(path, create=True)
    try:
        if buffers:
            disk.pwritev(handle, buffers, position)
    finally:
        disk.close(handle)


def _sync(disk: Disk, path: str) -> None:
    handle = disk.open(path)
    try:
        disk.sync_blocking(handle)
    finally:
        disk.close(handle)
