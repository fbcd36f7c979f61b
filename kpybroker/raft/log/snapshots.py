"""Reads, writes and deletes snapshots of the metadata log, and determines when the next one is due (KIP-630).

The name `NNNN-NNNN.checkpoint` contains the end offset of the snapshot, and the epoch of the last record below it. A
file is written as `.part`, synced, and then renamed. So a file with the final name is complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from kpybroker.config import BrokerConfig
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.metadata.image import Image
from kpybroker.raft.core.state import Tail
from kpybroker.storage.files.file_pool import is_short
from kpybroker.wire.records.snapshot import Row, decode_snapshot, encode_snapshot
from kpybroker.world import World

log = logging.getLogger(__name__)

SUFFIX = ".checkpoint"
FILE_LIMIT_BYTES = 1 << 32
PARTIAL = ".part"
KEPT = 2
"""The number of snapshots that are always kept, regardless of the settings: the newest one may be unreadable."""


class Snapshot(NamedTuple):
    """The content of a snapshot. `end` is the first offset that it does not contain."""

    end: int
    epoch: int
    records: list[Any]
    control: list[tuple[int, Any]]


class Snapshots:
    """The snapshots in the directory of a metadata log."""

    def __init__(self, world: World, config: BrokerConfig, path: str) -> None:
        self._world = world
        self._path = path
        self._every_bytes = config.metadata_log_max_record_bytes_between_snapshots
        self._every_ms = config.metadata_log_max_snapshot_interval_ms
        self._keep_bytes = config.metadata_max_retention_bytes
        self._keep_ms = config.metadata_max_retention_ms
        self._missing_bytes = 0
        """The size of the records in the log that no snapshot contains."""
        self._missing_since_ms: int | None = None
        self._known: list[Tail] = []
        """The snapshots on disk, the oldest first."""

    @property
    def oldest(self) -> Tail | None:
        """The oldest snapshot; None if there is none. The log starts at or before its end."""
        return self._known[0] if self._known else None

    @property
    def newest(self) -> Tail | None:
        """The newest snapshot, which is sent to a replica with a log that ends before this log starts; None if there is
        none."""
        return self._known[-1] if self._known else None

    def names(self) -> list[tuple[int, int, str]]:
        """The (end, epoch, file name) of each snapshot, the oldest first."""
        found = []
        for name in self._world.disk.list(self._path):
            end, dash, epoch = name.removesuffix(SUFFIX).partition("-")
            if name.endswith(SUFFIX) and dash and len(end) == 20 and end.isdecimal() and epoch.isdecimal():
                found.append((int(end), int(epoch), name))
        return sorted(found)

    def load_newest(self) -> Snapshot | None:
        """Return the newest readable snapshot; None if there is none. May block on the disk. Raises Damage.

        If the newest snapshot is unreadable, this tries the one before it: the log may still contain the records in
        between.
        """
        disk = self._world.disk
        for name in disk.list(self._path):
            if name.endswith(PARTIAL):
                disk.unlink(f"{self._path}/{name}")
        self._known = [Tail(epoch, end) for end, epoch, _ in self.names()]
        unreadable: Damage | None = None
        for end, epoch, name in reversed(self.names()):
            handle = disk.open(f"{self._path}/{name}")
            try:
                data = disk.pread(handle, min(disk.size(handle), FILE_LIMIT_BYTES), 0)
            finally:
                disk.close(handle)
            try:
                return Snapshot(end, epoch, *decode_snapshot(data, f"{self._path}/{name}"))
            except Damage as damage:
                log.error("skipped an unreadable snapshot: %s", damage)
                unreadable = damage
        if unreadable is not None:
            raise unreadable
        return None

    def appended(self, size_bytes: int, timestamp_ms: int) -> None:
        """Note appended records, which no snapshot contains yet. `timestamp_ms` is the wall-clock time of the append.

        This time may be in an earlier run. So the age of the first such record is computed once, limited to the
        snapshot interval, and then measured with the steady clock.
        """
        self._missing_bytes += size_bytes
        if self._missing_since_ms is None:
            waited_ms = min(max(self._world.wall_ms() - timestamp_ms, 0), max(self._every_ms, 0))
            self._missing_since_ms = self._world.steady_ms() - waited_ms

    def is_due(self) -> bool:
        """Whether enough bytes have been appended since the last snapshot, or enough time has passed since the first of
        them."""
        if self._missing_since_ms is None:
            return False
        waited_ms = self._world.steady_ms() - self._missing_since_ms
        return self._missing_bytes >= self._every_bytes or 0 < self._every_ms <= waited_ms

    async def write(self, image: Image, control: list[Row]) -> None:
        """Write the snapshot of an Image in small steps of the event loop. If it raises OSError, no snapshot was
        written."""
        self._missing_bytes, self._missing_since_ms = 0, None
        disk = self._world.disk
        end, now_ms = image.offset + 1, self._world.wall_ms()
        path = self._name(Tail(image.epoch, end))
        handle = disk.open(path + PARTIAL, create=True)
        try:
            disk.truncate(handle, 0)
            position = 0
            for chunk in encode_snapshot(
                image.records(), epoch=image.epoch, now_ms=now_ms, last_timestamp_ms=now_ms, control=control
            ):
                position += disk.pwritev(handle, [chunk], position)
                await asyncio.sleep(0)
            await disk.sync(handle)
        finally:
            disk.close(handle)
        disk.rename(path + PARTIAL, path)
        await disk.sync_directory(self._path)
        self._note(Tail(image.epoch, end))
        log.info("wrote the metadata snapshot of offset %d, %d bytes", end, position)

    def _note(self, snapshot: Tail) -> None:
        self._known = sorted({*self._known, snapshot}, key=lambda known: known.end)

    def _name(self, snapshot: Tail) -> str:
        return f"{self._path}/{snapshot.end:020d}-{snapshot.epoch:010d}{SUFFIX}"

    async def read(self, snapshot: Tail, position: int, max_bytes: int) -> tuple[int, bytes]:
        """Return the size of a snapshot, and up to `max_bytes` of it from `position`. Raises OSError, or KeyError if
        there is no such snapshot."""
        if snapshot not in self._known:
            raise KeyError(snapshot)
        disk = self._world.disk
        handle = disk.open(self._name(snapshot))
        try:
            size = disk.size(handle)
            wanted = min(max_bytes, size - position) if position >= 0 else 0
            return size, await disk.cold_read(handle, wanted, position) if wanted > 0 else b""
        finally:
            disk.close(handle)

    async def receive(self, snapshot: Tail, pieces: AsyncIterator[bytes]) -> Snapshot:
        """Write a snapshot that the leader sends. It is used only when it is complete and on disk.

        Raises Damage, KAFKA_STORAGE_ERROR if file descriptors have run out, and the errors of `pieces`.
        """
        disk = self._world.disk
        path = self._name(snapshot)
        with _own_files(path):
            handle = disk.open(path + PARTIAL, create=True)
        position = 0
        try:
            with _own_files(path):
                disk.truncate(handle, 0)
            async for piece in pieces:
                with _own_files(path):
                    position += disk.pwritev(handle, [piece], position)
            with _own_files(path):
                await disk.sync(handle)
                data = await disk.cold_read(handle, min(position, FILE_LIMIT_BYTES), 0)
        finally:
            disk.close(handle)
        received = Snapshot(snapshot.end, snapshot.epoch, *decode_snapshot(data, path))
        with _own_files(path):
            disk.rename(path + PARTIAL, path)
            await disk.sync_directory(self._path)
        self._note(snapshot)
        log.info("received the metadata snapshot of offset %d, %d bytes", snapshot.end, position)
        return received

    async def forget(self, log_bytes: int) -> int:
        """Delete old snapshots by age, and by the size of all snapshots and the log (metadata.max.retention.*).

        Returns the end of the oldest remaining snapshot. The log below it is not needed. Raises OSError.
        """
        disk = self._world.disk
        names = self.names()
        sizes = {name: disk.path_size(f"{self._path}/{name}") for _, _, name in names}
        total = log_bytes + sum(sizes.values())
        now_ms = self._world.wall_ms()
        while len(names) > KEPT:
            oldest = names[0][2]
            path = f"{self._path}/{oldest}"
            is_old = 0 <= self._keep_ms < now_ms - disk.modified_ms(path)
            if not is_old and not 0 <= self._keep_bytes < total:
                break
            await disk.off_loop(partial(disk.unlink, path), path)
            total -= sizes[oldest]
            del names[0]
        self._known = [Tail(epoch, end) for end, epoch, _ in names]
        return names[0][0] if names else 0


@contextmanager
def _own_files(path: str) -> Iterator[None]:
    """Turn an OSError of this node's files into a KafkaError or Damage, so that it is not mistaken for a lost
    connection."""
    try:
        yield
    except OSError as error:
        if is_short(error):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{path}: {error}") from error
        raise Damage(f"{path}: {error}") from error
