"""Group commit: one sync of a log at a time, each for everything that was written before it began."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from kpybroker.storage.files.checkpoint_files import PARTITION_METADATA
from kpybroker.storage.files.epochs import FILE_NAME as EPOCHS
from kpybroker.storage.files.file_pool import is_short
from kpybroker.storage.files.segment import INDEX, SNAPSHOT, TIME_INDEX, TXN_INDEX, Segment
from kpybroker.storage.files.segments import Segments
from kpybroker.world import Disk

if TYPE_CHECKING:
    from kpybroker.storage.log.log import Log

SHORT_RETRY_S = 0.1
"""When to look for a descriptor again where there was none."""


class GroupSync:
    """What of a log is on disk, and how more of it gets there."""

    __slots__ = ("_is_watched", "_running", "_sealed", "directory_changed", "generation", "synced_end")

    def __init__(self, synced_end: int) -> None:
        self.synced_end = synced_end
        """Everything below is on disk. It is the recovery point too: indexes of full segments are synced with them."""
        self.directory_changed = False
        """Files were made whose names are not yet known to be on disk."""
        self._sealed: list[Segment] = []
        self._running: asyncio.Future[None] | None = None
        self._is_watched = False
        self.generation = 0
        """Counts truncations."""

    @property
    def has_sealed(self) -> bool:
        """Full segments wait for their sync."""
        return bool(self._sealed)

    @property
    def is_running(self) -> bool:
        """A sync is under way."""
        return self._running is not None

    def sealed(self, segment: Segment) -> None:
        self._sealed.append(segment)

    def recovered(self, segments: Segments, recovery_point: int) -> None:
        """After an unclean stop: the page cache may hold what the disk does not."""
        self.synced_end = recovery_point
        self.directory_changed = True
        self._sealed = [segments[at] for at in range(segments.first_in_doubt(recovery_point), len(segments) - 1)]

    def forget(self, segments: list[Segment]) -> None:
        """These are deleted."""
        gone = set(map(id, segments))
        self._sealed = [segment for segment in self._sealed if id(segment) not in gone]

    def cut(self, end: int) -> None:
        """The log was truncated: a sync under way does not speak for what is written now."""
        self.generation += 1
        self.synced_end = min(self.synced_end, end)

    async def up_to(self, log: Log, end: int, *, is_chore: bool = False) -> None:
        """Return when everything below `end` is on disk, or was cut off meanwhile. Raises OSError.

        A chore may take its time: its syncs do not tell that the disk hangs, unless each batch is synced anyway.
        """
        while self.synced_end < min(end, log.written_end) and log.offline is None:
            if self._running is not None:
                with nullcontext() if is_chore or self._is_watched else log.device.working(log.world.steady_ms):
                    await asyncio.shield(self._running)
                continue
            self._running = asyncio.get_running_loop().create_future()
            self._is_watched = not is_chore or log.settings.fsync_always
            try:
                await self._sync(log, is_watched=self._is_watched)
            except OSError as error:
                if not is_short(error):
                    raise
                await asyncio.sleep(SHORT_RETRY_S)  # who waits for the disk waits for a descriptor, too
            finally:
                running, self._running = self._running, None
                running.set_result(None)

    async def _sync(self, log: Log, *, is_watched: bool) -> None:
        self._save_epochs(log)
        generation, end, sealed = self.generation, log.written_end, self._sealed
        active = log.segments.active  # it may be full, and another be active, before the sealed ones are synced
        self._sealed = []
        disk = log.world.disk
        try:
            for segment in sealed:
                if segment.deleted:
                    continue  # retention was quicker
                await _sync_segment(log, segment, is_watched=is_watched)
                if is_watched:
                    await _sync_files(log, _companions(segment.path), is_watched=True)
                else:
                    await disk.off_loop(partial(_sync_companions, log, segment.path), log.directory)
            if active.written_bytes and not active.deleted:
                await _sync_segment(log, active, is_watched=is_watched)
            if self.directory_changed:
                self.directory_changed = False
                if is_watched:
                    await _sync_names_watched(log)
                else:
                    await disk.off_loop(partial(_sync_names, log), log.directory)
        except (OSError, asyncio.CancelledError):
            self._sealed = [segment for segment in sealed if not segment.deleted] + self._sealed
            self.directory_changed = True  # what waits for the disk thread never begins
            raise
        if generation == self.generation:
            self.synced_end = max(self.synced_end, end)

    def _save_epochs(self, log: Log) -> None:
        """Recovery reads batches from the recovery point on only; the epochs of those below must be in their file."""
        if log.epochs.unsaved and log.written_end > log.start:
            log.epochs.save()
            self.directory_changed = True

    def blocking(self, log: Log) -> None:
        """The same on the caller, at a stop. Raises OSError."""
        disk = log.world.disk
        self._save_epochs(log)
        if log.segments.any_aborted:  # a torn transaction index looks sound, and after a clean stop it is believed
            _sync_companions(log, log.segments.active.path)
            self.directory_changed = True
        for segment in self._sealed:
            disk.sync_blocking(segment.handle())
            _sync_companions(log, segment.path)
        self._sealed.clear()
        if self.synced_end < log.written_end:
            disk.sync_blocking(log.segments.active.handle())
        if self.directory_changed:
            self.directory_changed = False
            _sync_names(log)
        self.synced_end = log.written_end

    async def at_stop(self, log: Log) -> None:
        """As `blocking`, in threads; but for the directory that the partition's is in, which one sync does for all.

        Where it is cancelled the rest is not on disk, and not said to be. Raises OSError.
        """
        disk, active = log.world.disk, log.segments.active
        while self._running is not None:
            await asyncio.shield(self._running)
        self._save_epochs(log)
        if log.segments.any_aborted:
            await _sync_files(log, _companions(active.path))
            self.directory_changed = True
        while self._sealed:
            await _sync_segment(log, self._sealed[0])
            await _sync_files(log, _companions(self._sealed[0].path))
            del self._sealed[0]
        if self.synced_end < log.written_end:
            await _sync_segment(log, active)
        if self.directory_changed:
            await _sync_files(log, _names(log))
            await disk.sync_directory(log.directory)
            self.directory_changed = False
        self.synced_end = log.written_end


async def _sync_segment(log: Log, segment: Segment, *, is_watched: bool = False) -> None:
    handle = segment.hold()
    try:
        with _working(log, is_watched):
            await log.world.disk.sync(handle)
    finally:
        segment.let_go()


def _working(log: Log, is_watched: bool) -> AbstractContextManager[None]:
    """For one sync: a watched one tells that the disk hangs where it does not end."""
    return log.device.working(log.world.steady_ms) if is_watched else nullcontext()


def _companions(path: str) -> list[str]:
    """The indexes of a full segment, and the snapshot made when it began."""
    return [path + suffix for suffix in (INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)]


def _names(log: Log) -> list[str]:
    """The small files of a partition."""
    return [f"{log.directory}/{name}" for name in (PARTITION_METADATA, EPOCHS)]


async def _sync_files(log: Log, paths: list[str], *, is_watched: bool = False) -> None:
    """Sync those that are there."""
    disk = log.world.disk
    for path in paths:
        try:
            handle = disk.open(path)
        except FileNotFoundError:
            continue
        try:
            with _working(log, is_watched):
                await disk.sync(handle)
        finally:
            disk.close(handle)


async def _sync_names_watched(log: Log) -> None:
    """As `_sync_names`, one sync at a time."""
    await _sync_files(log, _names(log), is_watched=True)
    for path in (log.directory, log.directory.rsplit("/", 1)[0]):
        with _working(log, True):
            await log.world.disk.sync_directory(path)


def _sync_files_blocking(disk: Disk, paths: list[str]) -> None:
    for path in paths:
        try:
            handle = disk.open(path)
        except FileNotFoundError:
            continue
        try:
            disk.sync_blocking(handle)
        finally:
            disk.close(handle)


def _sync_companions(log: Log, path: str) -> None:
    """On the disk thread."""
    _sync_files_blocking(log.world.disk, _companions(path))


def _sync_names(log: Log) -> None:
    """Sync the partition's directory and its small files, and the directory it is in. On the disk thread."""
    disk = log.world.disk
    _sync_files_blocking(disk, _names(log))
    disk.sync_directory_blocking(log.directory)
    disk.sync_directory_blocking(log.directory.rsplit("/", 1)[0])
