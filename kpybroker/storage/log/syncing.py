"""Group commit: a log has one sync at a time, which covers all batches that were written before it began."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from kpybroker.storage.files.checkpoint_files import PARTITION_METADATA
from kpybroker.storage.files.epochs import FILE_NAME as EPOCHS
from kpybroker.storage.files.file_pool import is_short
from kpybroker.storage.files.segment import INDEX, SNAPSHOT, TIME_INDEX, TXN_INDEX, Segment
from kpybroker.storage.log.log_files import LogFiles
from kpybroker.world import Disk

SHORT_RETRY_S = 0.1
"""The time after which a sync is retried if no file descriptor was free."""


class GroupSync:
    """Syncs the files of one log."""

    __slots__ = ("_files", "_is_watched", "_running")

    def __init__(self, files: LogFiles) -> None:
        self._files = files
        self._running: asyncio.Future[None] | None = None
        self._is_watched = False

    @property
    def is_running(self) -> bool:
        """Whether a sync is in progress."""
        return self._running is not None

    async def up_to(self, end: int, *, log_start: int, is_chore: bool = False, is_forced: bool = False) -> None:
        """Return when all records below `end` are on disk, or were truncated in the meantime. Raises OSError.

        The sync of a background task may take a long time without being reported as a hanging disk, unless every batch
        has to be synced anyway (`is_forced`). For `log_start`, see `LogFiles.save_epochs`.
        """
        files = self._files
        while files.synced_end < min(end, files.written_end) and files.offline is None:
            if self._running is not None:
                watched = is_chore or self._is_watched
                with nullcontext() if watched else files.device.working(files.world.steady_ms):
                    await asyncio.shield(self._running)
                continue
            self._running = asyncio.get_running_loop().create_future()
            self._is_watched = not is_chore or is_forced
            try:
                await self._sync(log_start)
            except OSError as error:
                if not is_short(error):
                    raise
                await asyncio.sleep(SHORT_RETRY_S)  # callers are waiting for the disk, so they can wait a little longer
            finally:
                running, self._running = self._running, None
                running.set_result(None)

    async def _sync(self, log_start: int) -> None:
        files, disk = self._files, self._files.world.disk
        files.save_epochs(log_start)
        generation, end, sealed = files.generation, files.written_end, files.take_sealed()
        # another segment may become active before the full ones are synced
        active = files.segments.active
        try:
            for segment in sealed:
                if segment.deleted:
                    continue  # retention has deleted it in the meantime
                await _sync_segment(files, segment, self._is_watched)
                await self._sync_with(_companions(segment.path), partial(_sync_companions, disk, segment.path))
            if active.written_bytes and not active.deleted:
                await _sync_segment(files, active, self._is_watched)
            if files.take_names_changed():
                parent = files.directory.rsplit("/", 1)[0]
                await self._sync_with(_names(files), partial(_sync_names, files), files.directory, parent)
        except (OSError, asyncio.CancelledError):
            files.sync_failed(sealed)  # work that is waiting for the disk's thread will never begin
            raise
        files.synced(end, generation)

    async def _sync_with(self, paths: list[str], in_one_go: Callable[[], None], *directories: str) -> None:
        """Sync the small files of a segment. In a watched sync, they are synced one by one, so that a hanging disk is
        detected. In a chore, `in_one_go` syncs them on the disk's thread, which may have to do other work first."""
        files = self._files
        if not self._is_watched:
            await files.world.disk.off_loop(in_one_go, files.directory)
            return
        await _sync_files(files, paths, is_watched=True)
        for directory in directories:
            with _working(files, True):
                await files.world.disk.sync_directory(directory)

    def blocking(self, log_start: int) -> None:
        """Sync all files on the calling thread, at shutdown. Raises OSError."""
        files, disk = self._files, self._files.world.disk
        active = files.segments.active
        files.save_epochs(log_start)
        sealed = files.take_sealed()
        try:
            if files.segments.any_aborted:  # an incomplete transaction index looks valid, and would be trusted
                _sync_companions(disk, active.path)
                files.note_new_names()
            for segment in sealed:
                disk.sync_blocking(segment.handle())
                _sync_companions(disk, segment.path)
            if active.written_bytes and files.synced_end < files.written_end:
                disk.sync_blocking(active.handle())
            if files.take_names_changed():
                _sync_names(files)
        except OSError:
            files.sync_failed(sealed)
            raise
        files.synced(files.written_end, files.generation)

    async def at_stop(self, log_start: int) -> None:
        """Like `blocking`, but on other threads. The caller syncs the log directory once for all partitions in it.

        If it is cancelled, the remaining files do not count as synced. Raises OSError.
        """
        files, disk = self._files, self._files.world.disk
        active = files.segments.active
        while self._running is not None:
            await asyncio.shield(self._running)
        files.save_epochs(log_start)
        sealed = files.take_sealed()
        try:
            if files.segments.any_aborted:
                await _sync_files(files, _companions(active.path))
                files.note_new_names()
            for segment in sealed:
                await _sync_segment(files, segment)
                await _sync_files(files, _companions(segment.path))
            if active.written_bytes and files.synced_end < files.written_end:
                await _sync_segment(files, active)
            if files.take_names_changed():
                await _sync_files(files, _names(files))
                await disk.sync_directory(files.directory)
        except (OSError, asyncio.CancelledError):
            files.sync_failed(sealed)
            raise
        files.synced(files.written_end, files.generation)


async def _sync_segment(files: LogFiles, segment: Segment, is_watched: bool = False) -> None:
    handle = segment.hold()
    try:
        with _working(files, is_watched):
            await files.world.disk.sync(handle)
    finally:
        segment.let_go()


def _working(files: LogFiles, is_watched: bool) -> AbstractContextManager[None]:
    """A context in which a watched sync is timed, so that a hanging disk is detected if the sync does not end."""
    return files.device.working(files.world.steady_ms) if is_watched else nullcontext()


def _companions(path: str) -> list[str]:
    """The indexes of a full segment, and the producer snapshot at its base offset."""
    return [path + suffix for suffix in (INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)]


def _names(files: LogFiles) -> list[str]:
    """The other small files of a partition."""
    return [f"{files.directory}/{name}" for name in (PARTITION_METADATA, EPOCHS)]


async def _sync_files(files: LogFiles, paths: list[str], *, is_watched: bool = False) -> None:
    """Sync the files that exist."""
    disk = files.world.disk
    for path in paths:
        try:
            handle = disk.open(path)
        except FileNotFoundError:
            continue
        try:
            with _working(files, is_watched):
                await disk.sync(handle)
        finally:
            disk.close(handle)


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


def _sync_companions(disk: Disk, path: str) -> None:
    """Sync the indexes of a full segment and its producer snapshot. Runs on the disk's thread."""
    _sync_files_blocking(disk, _companions(path))


def _sync_names(files: LogFiles) -> None:
    """Sync the partition's directory, its small files, and its parent directory. Runs on the disk's thread."""
    disk = files.world.disk
    _sync_files_blocking(disk, _names(files))
    disk.sync_directory_blocking(files.directory)
    disk.sync_directory_blocking(files.directory.rsplit("/", 1)[0])
