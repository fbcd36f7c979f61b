"""One log directory: the logs of its partitions, and the checkpoint files that they share.

`recovery-point-offset-checkpoint`, `replication-offset-checkpoint` and `log-start-offset-checkpoint` are written at
intervals and at shutdown, and `cleaner-offset-checkpoint` after each cleaning. A clean shutdown writes
`.kafka_cleanshutdown` last, and the next start removes it first. If a partition is damaged, only that partition goes
offline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from operator import attrgetter

from kpybroker.config import BrokerConfig, LogSettings
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.storage.dirs.closing import Closing
from kpybroker.storage.dirs.directory_names import DELETED, STRAY, futures_in, key_of, unique_name
from kpybroker.storage.dirs.formatting import METADATA_DIRECTORY
from kpybroker.storage.dirs.garbage import Garbage, unlink
from kpybroker.storage.dirs.start_offsets import StartOffsets
from kpybroker.storage.files.checkpoint_files import (
    CLEANED,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    read_offsets,
    read_topic_id,
    replace_file,
    sync_file,
    take_clean_mark,
    write_offsets,
    write_topic_id,
)
from kpybroker.storage.files.file_pool import FilePool, is_short
from kpybroker.storage.log.log import Log
from kpybroker.storage.log.recovery import Origin
from kpybroker.storage.log.slices import Work, at_once
from kpybroker.topics import TopicPartition
from kpybroker.world import World

log = logging.getLogger(__name__)

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
Offsets = dict[TopicPartition, int]


class LogDirectory:
    """Opens, creates and deletes the logs of partitions. The directory must already be formatted and locked."""

    def __init__(
        self,
        world: World,
        path: str,
        config: BrokerConfig,
        directory_id: bytes = b"",
        pool: FilePool | None = None,
        on_io_error: Callable[[str, int, str], None] | None = None,
    ) -> None:
        """Read the checkpoints, and remove the marker of a clean shutdown. Raises OSError.

        `pool` may be shared. `on_io_error(topic, partition, why)` is called when the disk fails during work on a log.
        """
        self._world = world
        self._config = config
        self.path = path
        self.id = directory_id
        self.pool = FilePool(config.max_open_files) if pool is None else pool
        self.logs: dict[TopicPartition, Log] = {}
        self.damaged: dict[TopicPartition, str] = {}
        """Partitions that could not be opened, with the reasons."""
        self.broker_epoch = -1
        self._on_io_error = on_io_error
        mark = take_clean_mark(world.disk, f"{path}/{CLEAN_SHUTDOWN}")
        self.clean = mark is not None
        self.previous_epoch = -1 if mark is None else mark
        """The broker epoch at the last clean shutdown (BrokerRegistration); -1 if the shutdown was not clean."""
        self._recovery_points = self._read_offsets(RECOVERY_POINTS)
        self._high_watermarks = self._read_offsets(HIGH_WATERMARKS)
        self._starts = self._read_offsets(LOG_STARTS)
        self.start_offsets = StartOffsets(world.disk, path, self._start_rows)
        self._cleaned = self._read_offsets(CLEANED)
        self._cleaned_on_disk = dict(self._cleaned)
        self._is_saving_cleaned = False
        self._present = {name for name in world.disk.list(path) if key_of(name) is not None}
        self.futures = futures_in(world.disk, path)
        """The directory names of the future replicas in this log directory, by partition."""
        self._stale: set[TopicPartition] = set()
        """Partitions that no longer exist here, but still have rows in the checkpoints on disk."""
        self._discards = 0
        self._is_checkpointing = False
        for offsets in (self._recovery_points, self._high_watermarks, self._starts):
            kept = (key for key in offsets if key not in self.futures)
            self._stale |= {key for key in kept if f"{key[0]}-{key[1]}" not in self._present}
        for key in self._stale:
            self._drop_rows(key)
        self.is_recovered = self.clean or self._present <= {METADATA_DIRECTORY}
        """Whether every partition has been recovered."""
        self.garbage = Garbage(world)
        """The files to unlink. The owner of this directory runs its task."""
        self.deleted = [name for name in world.disk.list(path) if name.endswith(DELETED)]
        """`-delete` directories that the previous process did not unlink."""

    def register(self, broker_epoch: int) -> None:
        """Set the broker epoch that a clean shutdown saves."""
        self.broker_epoch = broker_epoch

    def recovered(self) -> None:
        """Store that every partition has been opened, and recovered if necessary."""
        self.is_recovered = True

    def _read_offsets(self, name: str) -> Offsets:
        try:
            return read_offsets(self._world.disk, f"{self.path}/{name}")
        except Damage as damage:
            log.warning("%s; every log is recovered from its beginning", damage)
            self.clean = False
            return {}

    # partitions

    def open_log(self, topic: str, topic_id: bytes, partition: int, settings: LogSettings) -> Log:
        """Open a partition's log. The directory of a new log is created with its first batch.

        Files of a deleted topic with the same name are deleted. Raises Damage, or KAFKA_STORAGE_ERROR if there are too
        few file descriptors. In both cases the partition is added to `damaged`.
        """
        return at_once(self.opening(topic, topic_id, partition, settings))

    def opening(self, topic: str, topic_id: bytes, partition: int, settings: LogSettings) -> Work[Log]:
        """Open a partition's log as `open_log` does, in slices."""
        key = (topic, partition)
        assert key not in self.logs, "a log is opened only once"
        try:
            opened = yield from self._opening(topic, topic_id, partition, settings)
        except (OSError, Damage, KafkaError) as error:
            damage = error if isinstance(error, Damage) else Damage(f"{self.path}/{topic}-{partition}: {error}")
            self.damaged[key] = str(damage)
            cause = error if isinstance(error, OSError) else error.__context__  # compiled code sets no __cause__
            if isinstance(error, KafkaError) or is_short(cause):
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(damage)) from error
            if self._on_io_error is not None and isinstance(cause, OSError):
                self._on_io_error(topic, partition, str(damage))
            raise damage from cause
        self.listen(opened)
        self.damaged.pop(key, None)
        self.logs[key] = opened
        if opened.cleaned_end < self._cleaned_on_disk.get(key, 0):
            self._save_cleaned_now()  # the log was truncated, or the row belongs to an earlier topic with that name
        return opened

    def needs_recovery(self, key: TopicPartition) -> bool:
        """Whether the files of a partition have to be recovered when its log is opened."""
        return not self.clean and f"{key[0]}-{key[1]}" in self._present

    def _opening(self, topic: str, topic_id: bytes, partition: int, settings: LogSettings) -> Work[Log]:
        disk = self._world.disk
        self.pool.require_room(disk)
        key = (topic, partition)
        name = self.futures.get(key, f"{topic}-{partition}")
        directory = f"{self.path}/{name}"
        is_future = key in self.futures
        if name in self._present:
            found = read_topic_id(disk, directory)
            if found is not None and found != topic_id:
                log.warning("%s belongs to a deleted topic of the same name, and is deleted", directory)
                self._discard(name, DELETED)
            elif found is None:
                write_topic_id(disk, directory, topic_id)
        is_new = not disk.exists(directory) if is_future else name not in self._present
        if (
            is_new and key in self._stale and not self._is_checkpointing
        ):  # a checkpoint in progress will rewrite the files
            self._write_without_stale()
        origin = Origin(
            clean=self.clean or is_new,
            recovery_point=0 if is_new else self._recovery_points.get(key, 0),
            log_start=0 if is_new else self._starts.get(key, 0),
            now_ms=self._world.wall_ms(),
            producer_expiration_ms=self._config.producer_id_expiration_ms,
            cleaned_end=0 if is_new else self._cleaned.get(key, 0),
            synced_end=0 if is_new else self._recovery_points.get(key, 0),
        )
        opened = yield from Log.loading(self._world, self.pool, directory, key, topic_id, settings, origin, lazy=True)
        opened.advance(max(opened.start, min(self._high_watermarks.get(key, 0), opened.end)))
        return opened

    def listen(self, one: Log) -> None:
        """Set the callbacks of a log to those of this directory."""
        before_cut = partial(self._lower_recovery_point, (one.topic, one.partition))
        one.listen(self._save_marks, before_cut, self._on_io_error)

    def drop_stale(self, key: TopicPartition) -> None:
        """Remove the rows of an earlier partition with this name from the checkpoints. Raises OSError."""
        if key in self._stale and not self._is_checkpointing:
            self._write_without_stale()

    def forget(self, key: TopicPartition) -> None:
        """Remove a partition that no longer has files in this directory."""
        self._present.discard(f"{key[0]}-{key[1]}")
        self._drop_rows(key)
        self._cleaned.pop(key, None)
        self._stale.add(key)
        self._discards += 1

    def delete_log(self, deleted: Log) -> None:
        """Delete a partition. Its directory is renamed now, and unlinked later on another thread."""
        key = (deleted.topic, deleted.partition)
        self.logs.pop(key, None)
        deleted.retire(f"{deleted.topic}-{deleted.partition} was deleted")
        if not deleted.files.made:
            return
        try:
            self._discard(f"{deleted.topic}-{deleted.partition}", DELETED, deleted.settings.file_delete_delay_ms)
        except OSError as error:
            log.error("%s cannot be deleted: %s", deleted.directory, error)

    def _discard(self, name: str, suffix: str, delay_ms: int = 0) -> None:
        topic, _, partition = name.rpartition("-")
        new = f"{self.path}/{unique_name(topic, int(partition), self._world.random.getrandbits(128), suffix)}"
        self._world.disk.rename(f"{self.path}/{name}", new)
        self.forget((topic, int(partition)))
        if suffix == DELETED:
            self.garbage.add(self._world.steady_ms() + delay_ms, new)

    def _drop_rows(self, key: TopicPartition) -> None:
        for offsets in (self._recovery_points, self._high_watermarks, self._starts):
            offsets.pop(key, None)

    def _write_without_stale(self) -> None:
        """Rewrite the checkpoints without stale rows, so that the rows of a deleted partition are not used for a new
        partition with the same name after a crash. Raises OSError."""
        self.start_offsets.save()
        self._write_checkpoints(self._recovery_points, self._high_watermarks)
        self._stale.clear()

    def _lower_recovery_point(self, key: TopicPartition, offset: int) -> None:
        """Called before a log is truncated: after a power failure, recovery must read batches that replaced synced
        ones.

        Raises OSError, or KafkaError while a checkpoint is in progress, because only one writer may use the files.
        """
        if self._recovery_points.get(key, 0) <= offset:
            return
        if self._is_checkpointing:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the recovery points are being written; try again")
        rows = {**self._recovery_points, key: offset}
        write_offsets(self._world.disk, f"{self.path}/{RECOVERY_POINTS}", rows, sync=True)
        self._world.disk.sync_directory_blocking(self.path)
        self._recovery_points = rows

    def collect(self, one: Log) -> None:
        """Take over the files that a log has renamed. Each file is unlinked when it is due."""
        for due_ms, path in one.files.garbage:
            self.garbage.add(due_ms, path)
        one.files.garbage.clear()

    def keep_only(
        self, hosted: Mapping[TopicPartition, bytes], named: Collection[TopicPartition] = ()
    ) -> set[TopicPartition]:
        """Rename partitions that have no replica on this broker to `-stray`, and return them. Called at startup.

        `hosted` contains the topic ids of the partitions with a replica on this broker. Other partitions were
        reassigned, or their topic was deleted or recreated while the broker was down. A partition whose topic id was
        lost in a power failure is kept unless it is in `named`, which contains partitions whose valid copy is in
        another directory. Raises OSError."""
        strays = set()
        for name in sorted(self._present - {METADATA_DIRECTORY}):
            topic, _, index = name.rpartition("-")
            key = topic, int(index)
            wanted, told = hosted.get(key), self._topic_id_of(name)
            if wanted is not None and (told == wanted or (told is None and key not in named)):
                continue
            log.warning("%s/%s has no replica on this broker in the metadata; it is renamed to -stray", self.path, name)
            self._discard(name, STRAY)
            strays.add(key)
        return strays

    def _topic_id_of(self, name: str) -> bytes | None:
        try:
            return read_topic_id(self._world.disk, f"{self.path}/{name}")
        except Damage:
            return None  # opening the log will raise the same error

    # checkpoints

    def _offsets(self, kept: Offsets, of: Callable[[Log], int | None]) -> Offsets:
        """The rows of a checkpoint: current offsets for open logs, and the previous rows for other logs."""
        rows = dict(kept)
        for key, one in self.logs.items():
            offset = of(one)
            if offset is None:
                rows.pop(key, None)
            else:
                rows[key] = offset
        return rows

    def _start_rows(self) -> Offsets:
        self._starts = self._offsets(self._starts, _start_of)
        return dict(self._starts)

    def cleaned_offsets(self) -> Offsets:
        """The rows of cleaner-offset-checkpoint. Logs that were never cleaned have no row."""
        self._cleaned = self._offsets(self._cleaned, _cleaned_end_of)
        return dict(self._cleaned)

    async def save_cleaned(self) -> None:
        """Write cleaner-offset-checkpoint on another thread. Never raises, because cleaning a log twice does no harm.

        The file has one writer at a time, which also writes changes that happen in the meantime.
        """
        self._is_saving_cleaned = True
        written: Offsets | None = None
        while written != (rows := self.cleaned_offsets()):
            written = rows
            await self._world.disk.off_loop(partial(self._write_cleaned, rows, sync=True), self.path)
        self._is_saving_cleaned = False  # not in a `finally`: after a cancellation, a thread may still be writing

    def _save_cleaned_now(self, *, sync: bool = False) -> None:
        rows = self.cleaned_offsets()
        if rows != self._cleaned_on_disk and not self._is_saving_cleaned:
            self._write_cleaned(rows, sync=sync)

    def _write_cleaned(self, rows: Offsets, *, sync: bool) -> None:
        try:
            write_offsets(self._world.disk, f"{self.path}/{CLEANED}", rows, sync=sync)
            self._cleaned_on_disk = rows
        except OSError as error:
            log.error("%s: %s cannot be written: %s", self.path, CLEANED, error)

    def _save_marks(self) -> None:
        self.start_offsets.save_soon()
        self._save_cleaned_now()

    async def checkpoint(self) -> None:
        """Sync full segments and advance the recovery points. Never raises. If a log fails, it goes offline."""
        for one in list(self.logs.values()):
            if one.files.has_sealed and one.offline is None:
                try:
                    await one.sync(is_chore=True)
                except Damage:
                    continue  # the error has been logged, and the log is offline
        self._update_offsets()
        rows, discards = (self._recovery_points, self._high_watermarks), self._discards
        self._is_checkpointing = True
        try:
            self.start_offsets.save_soon()
            await self.start_offsets.write_ended()
            await self._world.disk.off_loop(partial(self._write_checkpoints, *map(dict, rows)), self.path)
            if discards != self._discards:  # the files have rows of partitions that were deleted in the meantime
                self._write_without_stale()
            self._stale.clear()
        except OSError as error:
            log.error("%s: checkpoints cannot be written: %s", self.path, error)
        self._is_checkpointing = False  # not in a `finally`: after a cancellation, a thread may still be writing

    def _update_offsets(self) -> None:
        self._recovery_points = self._offsets(self._recovery_points, _synced_end_of)
        self._high_watermarks = self._offsets(self._high_watermarks, _high_watermark_of)
        self._starts = self._offsets(self._starts, _start_of)

    def _write_checkpoints(self, recovery_points: Offsets, high_watermarks: Offsets) -> None:
        disk = self._world.disk
        write_offsets(disk, f"{self.path}/{RECOVERY_POINTS}", recovery_points, sync=True)
        write_offsets(disk, f"{self.path}/{HIGH_WATERMARKS}", high_watermarks, sync=True)
        sync_file(disk, f"{self.path}/{LOG_STARTS}")

    async def close(self) -> None:
        """Close every log, write the checkpoints, and mark the shutdown as clean if every log was closed without
        damage.

        If the broker stops before it has the metadata, not all logs have been recovered, and the shutdown is not clean.
        """
        await self.start_offsets.settle()
        await self._world.disk.off_loop(
            lambda: None, self.path
        )  # wait for a checkpoint in progress, because only one writer may use the files
        whole = self.is_recovered and not self.damaged
        whole &= await Closing(self._world, self.path, list(self.logs.values())).run()
        self._update_offsets()
        self._is_saving_cleaned = False
        self._save_cleaned_now(sync=True)
        disk = self._world.disk
        try:
            self.start_offsets.save()
            self._write_checkpoints(self._recovery_points, self._high_watermarks)
            unlink(disk, self.garbage.take())
            if whole:
                disk.sync_directory_blocking(self.path)  # the partition names must be on disk before the marker
                epoch = max(self.broker_epoch, self.previous_epoch)  # the previous one if the broker never registered
                mark = f'{{"version":0,"brokerEpoch":{epoch}}}'
                replace_file(disk, f"{self.path}/{CLEAN_SHUTDOWN}", mark.encode(), sync=True)
            disk.sync_directory_blocking(self.path)
        except OSError as error:
            log.error("%s: the stop is not clean: %s", self.path, error)
        if not whole:
            why = "partitions are damaged" if self.is_recovered else "not all logs were recovered"
            log.warning("%s: %s; the next start recovers all logs of this directory", self.path, why)
        self.logs.clear()


def _start_of(one: Log) -> int | None:
    """The start offset to save; None if it is the base offset of the first segment."""
    return one.start if one.start > one.segments.first.base_offset else None


def _cleaned_end_of(one: Log) -> int | None:
    return one.cleaned_end or None


_synced_end_of: Callable[[Log], int] = attrgetter("synced_end")
_high_watermark_of: Callable[[Log], int] = attrgetter("high_watermark")
