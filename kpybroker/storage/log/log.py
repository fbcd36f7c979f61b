"""The log of one partition: append, flush, read, cut. Everything stateful in the broker is one of these.

`start <= last_stable <= high_watermark <= end`, always; `end` counts what is queued, `written_end` what the page cache
has, `synced_end` what the disk has. The partition moves `high_watermark`, and `last_stable` with it: up to the first
transaction that is open, or whose marker has not committed.
"""

from __future__ import annotations

from collections.abc import Callable

from kpybroker.config import LogSettings
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.storage.files.checkpoint_files import replace_file, write_topic_id
from kpybroker.storage.files.file_pool import FilePool
from kpybroker.storage.files.segment import SNAPSHOT, Segment, file_name
from kpybroker.storage.files.segments import Segments
from kpybroker.storage.log.admission import (
    ALL,
    NOTHING,
    Appended,
    appended,
    batch_time_is_ours,
    changes_batches,
    check_header,
    needs_no_walk,
    opening,
)
from kpybroker.storage.log.handles import open_aborted, open_active
from kpybroker.storage.log.reading import Reader
from kpybroker.storage.log.recovery import Loaded, Origin, empty, load
from kpybroker.storage.log.retention import apply_retention, truncate, unlink_all
from kpybroker.storage.log.slices import at_once
from kpybroker.storage.log.syncing import GroupSync
from kpybroker.storage.log.writing import WriteSide, may_grow
from kpybroker.storage.producers.loading import note_end
from kpybroker.storage.producers.producers import PRODUCER_EXPIRATION_MS, ProducerStates
from kpybroker.storage.producers.transactions import Verification
from kpybroker.wire.records.batch import Batch
from kpybroker.world import World


class Log(WriteSide):
    """One partition's log on one disk. Not for several threads."""

    __slots__ = (
        "_settings",
        "_simple",
        "before_cut",
        "directory",
        "end",
        "epochs",
        "garbage",
        "made",
        "partition",
        "pool",
        "producer_expiration_ms",
        "producers",
        "reader",
        "segments",
        "snapshot_end",
        "syncing",
        "topic",
        "topic_id",
        "world",
    )

    def __init__(
        self,
        world: World,
        pool: FilePool,
        directory: str,
        topic: str,
        partition: int,
        settings: LogSettings,
        of: Loaded,
    ) -> None:
        self.world = world
        self.pool = pool
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.topic_id: bytes | None = None
        self.made = True
        """There is a directory; a partition that never had a batch may do without."""
        self.segments: Segments = of.segments
        self.epochs = of.epochs
        self.producers: ProducerStates = of.producers
        self.producer_expiration_ms = PRODUCER_EXPIRATION_MS
        self.start = self.last_stable = self.high_watermark = of.start
        self.end = of.end
        self.cleaned_end = of.cleaned_end
        self.syncing = GroupSync(of.end)
        self.offline = None
        self.on_io_error = None
        self.on_start_moved: Callable[[], None] | None = None
        """Called when records were deleted from the start, or cleaned ones were cut: somebody writes that down."""
        self.before_cut: Callable[[int], None] | None = None
        """Called before what is at and after an offset is replaced: no recovery point on disk may be above it."""
        self.reader = Reader(world.disk, of.segments)
        self.garbage: list[tuple[int, str]] = []
        """(due by the steady clock, path): files to unlink off the loop."""
        self.snapshot_end = of.producers.snapshot_offset
        """The newest producer snapshot, -1 without one."""
        self.begin_writing(world.disk.device(directory), of.end)
        self.settings = settings

    @classmethod
    def open(
        cls,
        world: World,
        directory: str,
        topic: str,
        partition: int,
        settings: LogSettings,
        *,
        clean: bool,
        recovery_point: int = 0,
        log_start: int = 0,
        cleaned_end: int = 0,
        synced_end: int = 0,
        pool: FilePool | None = None,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        lazy: bool = False,
    ) -> Log:
        """Load, and recover unless `clean`; below `synced_end` nothing is cut off. Raises Damage.

        The directory is made if need be: at once, or with the first batch if `lazy`."""
        now_ms, expiration_ms = world.wall_ms(), producer_expiration_ms
        origin = Origin(clean, recovery_point, log_start, now_ms, expiration_ms, cleaned_end, synced_end)
        if pool is None:
            pool = FilePool(64)
        try:
            if world.disk.exists(directory):
                loaded = load(world.disk, pool, directory, settings, origin)
                made = True
            else:
                made = not lazy
                if made:
                    world.disk.mkdir(directory)
                loaded = empty(world.disk, pool, directory, log_start)
                loaded.segments.active.created_ms = origin.now_ms
        except OSError as error:
            raise Damage(f"{directory}: {error}") from error
        opened = cls(world, pool, directory, topic, partition, settings, loaded)
        opened.producer_expiration_ms = producer_expiration_ms
        opened.made = made
        if not clean:
            opened.changed = True
            opened.syncing.recovered(loaded.segments, min(recovery_point, loaded.end))
        opened._jitter(loaded.segments.active)
        return opened

    def __repr__(self) -> str:
        return f"Log({self.topic}-{self.partition}, {self.start}..{self.end})"

    @property
    def settings(self) -> LogSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: LogSettings) -> None:
        self._settings = settings
        self._simple = not changes_batches(settings)

    @property
    def synced_end(self) -> int:
        """Everything below is on disk."""
        return self.syncing.synced_end

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    def _jitter(self, segment: Segment) -> None:
        limit = min(self._settings.segment_jitter_ms, self._settings.segment_ms)
        segment.roll_jitter_ms = self.world.random.randrange(limit) if limit > 0 else 0

    # appending

    def append(
        self,
        batches: list[Batch],
        leader_epoch: int,
        now_ms: int,
        *,
        client: bool = True,
        verified: Verification | None = None,
        known: int = NOTHING,
    ) -> Appended:
        """Assign offsets and epoch in place and queue the batches; `flush` writes them, before the views change.

        A client's batch is validated, as far as it is not `known` to be sound: it comes alone; `verified` says that it
        may begin a transaction. Raises KafkaError, and then nothing was appended.
        """
        if self.offline is not None:
            self.require_online()
        settings = self._settings
        stamped = -1
        if client:
            if len(batches) != 1:
                raise KafkaError(ErrorCode.INVALID_RECORD, "one batch per partition, not several")
            batch = batches[0]
            if known != ALL:
                check_header(batch, settings, now_ms)
            if batch.producer_id >= 0 and (earlier := self.producers.check(batch, verified)) is not None:
                stamped = earlier.timestamp if batch_time_is_ours(settings) else -1
                return Appended(earlier.first_offset, earlier.last_offset, stamped, duplicate=True)
            if known == NOTHING and self.opens(batch):
                batches = [batch := at_once(opening(batch, settings, now_ms))]
            if not self._simple and batch_time_is_ours(settings):
                batch.stamp(stamped := now_ms)  # now, not when it was opened: times of append do not go backwards
        if not self.segments.active.is_open:
            open_active(self)
        if len(batches) > 1:
            self.pool.require_room(self.world.disk)  # that none of them is refused once another was queued
        base_offset = end = self.end
        try:
            for batch in batches:
                if self.segments.active.needs_roll(batch, end + batch.last_offset_delta, settings, now_ms):
                    self._roll_for(batch, end + batch.last_offset_delta)
                if not client and batch.is_control:
                    open_aborted(self)
                batch.patch(end, leader_epoch)
                end = self._queue_batch(batch)
        except (OSError, Damage, KafkaError) as error:
            if end == base_offset and isinstance(error, KafkaError):
                raise
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.fail(error))) from error
        return appended((base_offset, end - 1, stamped, False))

    def opens(self, batch: Batch) -> bool:
        """Whether the records of a client's batch must be walked over before it is appended."""
        return not (self._simple and needs_no_walk(batch, self._settings))

    def append_replicated(self, batches: list[Batch]) -> None:
        """Queue a leader's batches as they are: offsets and epochs were assigned by it.

        Raises Damage: the log is offline, or a batch was not what may come. KafkaError: not all of them for now; those
        below `end` are queued.
        """
        self.require_online()
        if not self.segments.active.is_open:
            open_active(self)
        try:
            for batch in batches:
                if batch.base_offset < self.end or not batch.crc_ok():
                    raise Damage(f"{self!r} was sent a batch from offset {batch.base_offset}, or one with a wrong CRC")
                if self.segments.active.needs_roll(batch, batch.last_offset, self._settings, self.world.wall_ms()):
                    self._roll_for(batch, batch.last_offset)
                if batch.is_control:
                    open_aborted(self)
                self._queue_batch(batch)
        except OSError as error:
            raise self.fail(error) from error

    def _queue_batch(self, batch: Batch) -> int:
        """The end of the log with it."""
        if batch.leader_epoch != self.epochs.noted:
            if not self.made:
                self.make()
            self.epochs.assign(batch.leader_epoch, batch.base_offset, save=False)
            self.epochs.noted = self.epochs.latest
        self.segments.active.add(batch, self._settings)
        if batch.producer_id >= 0:
            ended = self.producers.update(batch)
            if ended is not None:
                note_end(self.producers, self.segments, self.segments.active, ended)
        self._queue.append(batch.view)
        end = self.end = batch.base_offset + batch.last_offset_delta + 1
        return end

    def make(self) -> None:
        """Make the directory that is not there yet. Raises OSError."""
        if not self.world.disk.exists(self.directory):  # a try without descriptors may have made it
            self.world.disk.mkdir(self.directory)
        if self.topic_id is not None:
            write_topic_id(self.world.disk, self.directory, self.topic_id)
        self.made = True

    def roll(self) -> None:
        """Begin a new segment, unless the active one is empty. Raises Damage; KafkaError: not now."""
        self.flush()
        old = self.segments.active
        if not old.size_bytes:
            return
        self.pool.require_room(self.world.disk)
        try:
            old.seal()
            self.take_snapshot()
        except OSError as error:
            raise self.fail(error) from error
        self.syncing.sealed(old)
        self._add_segment(self.end)

    def _roll_for(self, batch: Batch, last_offset: int) -> None:
        """Roll before a batch, or once the device is quick again: a roll is several writes. Raises Damage."""
        if not self.device.is_slow or not may_grow(self.segments.active, batch, last_offset, self._settings):
            self.roll()

    def _add_segment(self, base_offset: int) -> None:
        segment = Segment(self.world.disk, self.pool, self.directory, base_offset)
        segment.created_ms = self.world.wall_ms()
        segment.aborted.begin()
        self._jitter(segment)
        self.segments.add(segment)

    def take_snapshot(self) -> None:
        """Write the producers' state at `end`, if any batch came since the last one. Raises OSError."""
        if self.end > max(self.snapshot_end, self.segments.first.base_offset):
            path = f"{self.directory}/{file_name(self.end, SNAPSHOT)}"
            replace_file(self.world.disk, path, self.producers.build_snapshot())
            self.snapshot_end = self.end

    # syncing, cutting, closing

    def begin_epoch(self, epoch: int) -> None:
        """This replica leads from here on: the epoch begins at `end`."""
        self.epochs.assign(epoch, self.end, save=False)

    async def sync(self, *, is_chore: bool = False) -> None:
        """Return when all that was flushed is on disk; callers share one fdatasync. No request and no other node waits
        for a chore, which may take its time. Raises Damage."""
        try:
            await self.syncing.up_to(self, self.written_end, is_chore=is_chore)
        except OSError as error:
            raise self.fail(error) from error
        if self.offline is not None:
            raise Damage(self.offline)

    def truncate_to(self, offset: int) -> None:
        """Forget everything at and after `offset`; the leader never had it. Raises Damage; KafkaError: not now.

        Also an epoch that began at the end: whoever led in it may not have written anything.
        """
        self.flush()
        self.pool.require_room(self.world.disk)
        try:
            if offset >= self.end:
                self.epochs.cut_end(self.end, save=self.made)
                return
            self.changed = True
            truncate(self, offset)
        except OSError as error:
            raise self.fail(error) from error

    def apply_retention(self, now_ms: int) -> int:
        """Delete segments by time, size and start offset; returns how many. Raises Damage; KafkaError: not now."""
        self.producers.expire(now_ms, self.producer_expiration_ms)
        try:
            return apply_retention(self, now_ms)
        except OSError as error:
            raise self.unchanged(error) from error

    def take_garbage(self, now_ms: int | None = None) -> list[str]:
        """Files whose time to be unlinked has come (all, without a time)."""
        due = [path for at_ms, path in self.garbage if now_ms is None or at_ms <= now_ms]
        self.garbage = [entry for entry in self.garbage if not (now_ms is None or entry[0] <= now_ms)]
        return due

    def _write_out(self) -> None:
        """Write all that a clean stop leaves: indexes, producer snapshot. Raises OSError, Damage, KafkaError."""
        self.flush()
        if self.changed and self.segments.active.written_bytes:
            self.segments.active.seal()
        if self.changed:
            self.take_snapshot()
            if self.made:
                self.epochs.save_if_changed()
        unlink_all(self.world.disk, self.take_garbage())

    async def close_soon(self) -> None:
        """As `close`, with its syncs in threads; the caller syncs the directory that the log's is in. Raises Damage."""
        try:
            if self.offline is None:
                self._write_out()
                await self.syncing.at_stop(self)
        except (OSError, KafkaError) as error:
            raise self.fail(error) from error
        self.drop_files()

    def close(self, *, sync: bool = True) -> None:
        """Write all that a clean stop leaves; waits for the disk. Raises Damage."""
        try:
            if self.offline is None:
                self._write_out()
                if sync:
                    self.syncing.blocking(self)
        except (OSError, KafkaError) as error:
            raise self.fail(error) from error
        finally:
            self.drop_files()

    def drop_files(self) -> None:
        """Close without writing."""
        for segment in self.segments:
            segment.drop_files()
