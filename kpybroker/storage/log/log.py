"""The log of one partition: append, flush, read, truncate.

`start <= last_stable <= high_watermark <= end` always holds. `end` includes queued batches, `written_end` only batches
in the page cache, and `synced_end` only batches on disk. The owner of the log, which is a partition or the metadata
quorum, advances `high_watermark`. `last_stable` follows it, up to the first transaction that is open or whose marker is
not committed. `LogFiles` contains the files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from kpybroker.config import LogSettings
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.storage.files.epochs import LeaderEpochs
from kpybroker.storage.files.file_pool import FilePool
from kpybroker.storage.files.segment import Segment, SegmentGone
from kpybroker.storage.files.segments import Segments
from kpybroker.storage.files.txn_index import AbortedTransaction
from kpybroker.storage.log.admission import (
    ALL,
    NOTHING,
    Appended,
    batch_time_is_ours,
    changes_batches,
    check_header,
    needs_no_walk,
    opening,
)
from kpybroker.storage.log.log_files import LogFiles
from kpybroker.storage.log.reading import aborted_within
from kpybroker.storage.log.recovery import Loaded, Origin, opening_files
from kpybroker.storage.log.retention import expired
from kpybroker.storage.log.slices import Work, at_once
from kpybroker.storage.log.syncing import GroupSync
from kpybroker.storage.log.timestamps import Found, first_at_or_after, newest
from kpybroker.storage.log.write_behind import WRITE_BYTES, WriteBehind, may_grow
from kpybroker.storage.producers.loading import note_end
from kpybroker.storage.producers.producers import PRODUCER_EXPIRATION_MS, ProducerStates
from kpybroker.storage.producers.transactions import Verification
from kpybroker.topics import TopicPartition, scheduled_topic_of
from kpybroker.wire.records.batch import Batch, base_offset_of
from kpybroker.world import Buffer, World

log = logging.getLogger(__name__)

_JOINED_BYTES: Final = 64 * 1024
"""Queued batches up to this size are joined before they are written, which is faster than writing small buffers."""
WRITTEN_AT_ONCE_BYTES: Final = 8 << 20
"""At most this many bytes are written on the event loop in one call, which copies them into the page cache in up to
15 ms. More bytes are written on a thread."""


class Log:
    """One partition's log on one disk. Not thread-safe."""

    __slots__ = (
        "_gaps",
        "_on_start_moved",
        "_on_written",
        "_queue",
        "_settings",
        "_simple",
        "_sync",
        "behind",
        "cleaned_end",
        "end",
        "files",
        "high_watermark",
        "last_stable",
        "partition",
        "producer_expiration_ms",
        "producers",
        "start",
        "topic",
    )

    def __init__(self, files: LogFiles, of: Loaded, settings: LogSettings, producer_expiration_ms: int) -> None:
        self.files = files
        self.topic = files.topic
        self.partition = files.partition
        self.producers: ProducerStates = of.producers
        self.producer_expiration_ms = producer_expiration_ms
        self.start = self.last_stable = self.high_watermark = of.start
        self.end = of.end
        self.cleaned_end = of.cleaned_end
        """The offset up to which compaction has cleaned the log. It is at most `end`."""
        self.behind: WriteBehind | None = None
        """The writes that a thread does for this log; None if there are none."""
        self._gaps = scheduled_topic_of(files.topic) is not None
        """Whether a producer's sequence may be higher than the next one: a delivery log lacks batches."""
        self._sync = GroupSync(files)
        self._queue: list[Buffer] = []
        self._on_written: Callable[[], None] = _nobody_waits
        self._on_start_moved: Callable[[], None] = _nobody_waits
        self.configure(settings)

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
        topic_id: bytes | None = None,
    ) -> Log:
        """Load the log, and recover it unless `clean`. Recovery truncates no records below `synced_end`. Raises Damage.

        A missing directory is created at once or, if `lazy`, with the first batch."""
        origin = Origin(
            clean, recovery_point, log_start, world.wall_ms(), producer_expiration_ms, cleaned_end, synced_end
        )
        pool = FilePool(64) if pool is None else pool
        key = topic, partition
        return at_once(cls.loading(world, pool, directory, key, topic_id, settings, origin, lazy=lazy))

    @classmethod
    def loading(
        cls,
        world: World,
        pool: FilePool,
        directory: str,
        key: TopicPartition,
        topic_id: bytes | None,
        settings: LogSettings,
        origin: Origin,
        *,
        lazy: bool,
    ) -> Work[Log]:
        """Load the log as `open` does, in slices."""
        files, of = yield from opening_files(world, pool, directory, key, topic_id, settings, origin, lazy=lazy)
        opened = cls(files, of, settings, origin.producer_expiration_ms)
        of.segments.active.jitter_roll(opened._jitter_ms())
        return opened

    def __repr__(self) -> str:
        return f"Log({self.topic}-{self.partition}, {self.start}..{self.end})"

    @property
    def settings(self) -> LogSettings:
        return self._settings

    def configure(self, settings: LogSettings) -> None:
        """Apply new settings."""
        self._settings = settings
        self._simple = not changes_batches(settings)

    # properties of the files

    @property
    def directory(self) -> str:
        """The path of the partition's directory."""
        return self.files.directory

    @property
    def segments(self) -> Segments:
        return self.files.segments

    @property
    def epochs(self) -> LeaderEpochs:
        return self.files.epochs

    @property
    def written_end(self) -> int:
        """All records below this offset have been written to the page cache."""
        return self.files.written_end

    @property
    def synced_end(self) -> int:
        """All records below this offset are on disk."""
        return self.files.synced_end

    @property
    def size_bytes(self) -> int:
        return self.files.segments.size_bytes

    @property
    def offline(self) -> str | None:
        """The reason why the log is offline; None if it is online."""
        return self.files.offline

    @property
    def is_syncing(self) -> bool:
        """Whether a sync is in progress."""
        return self._sync.is_running

    def require_online(self) -> None:
        """Raise KAFKA_STORAGE_ERROR if the log is offline."""
        self.files.require_online()

    def fail(self, error: OSError | Damage | KafkaError) -> Damage:
        """Take the log offline, and return the error to raise."""
        return self.files.fail(error)

    def listen(
        self,
        on_start_moved: Callable[[], None],
        before_cut: Callable[[int], None],
        on_io_error: Callable[[str, int, str], None] | None,
    ) -> None:
        """Set the callbacks of the log directory. `on_start_moved` is called when `start` or `cleaned_end` has to be
        saved. For the others, see `LogFiles.listen`."""
        self._on_start_moved = on_start_moved
        self.files.listen(before_cut, on_io_error)

    def tell(self, on_written: Callable[[], None]) -> None:
        """Have `on_written` called when a thread's write has ended. If the write failed, the log is already offline."""
        self._on_written = on_written

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
        """Assign offsets and epoch in place, and queue the batches. `flush` must be called before their bytes change.

        A client's batch must be the only one. Only the parts that are not in `known` are validated. It may begin a
        transaction only if `verified` is given. Raises KafkaError, in which case nothing has been appended.
        """
        files = self.files
        if files.offline is not None:
            files.require_online()
        settings = self._settings
        stamped = -1
        if client:
            if len(batches) != 1:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD, "a request must contain exactly one record batch per partition"
                )
            batch = batches[0]
            if known != ALL:
                check_header(batch, settings, now_ms)
            if batch.producer_id >= 0 and (earlier := self.producers.check(batch, verified, self._gaps)) is not None:
                stamped = earlier.timestamp if batch_time_is_ours(settings) else -1
                return Appended(earlier.first_offset, earlier.last_offset, stamped, duplicate=True)
            if known == NOTHING and self.opens(batch):
                batches = [batch := at_once(opening(batch, settings, now_ms))]
            if not self._simple and batch_time_is_ours(settings):
                batch.stamp(stamped := now_ms)  # not an earlier time: append times must be ascending
        segments = files.segments
        if not segments.active.is_open:
            files.open_active()
        if len(batches) > 1:
            files.pool.require_room(files.world.disk)  # so that no batch is refused after earlier ones were queued
        base_offset = end = self.end
        try:
            for batch in batches:
                if segments.active.needs_roll(batch, end + batch.last_offset_delta, settings, now_ms):
                    self._roll_for(batch, end + batch.last_offset_delta)
                if not client and batch.is_control:
                    files.load_active_aborted()
                batch.patch(end, leader_epoch)
                end = self._queue_batch(batch)
        except (OSError, Damage, KafkaError) as error:
            if end == base_offset and isinstance(error, KafkaError):
                raise
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(self.fail(error))) from error
        return Appended(base_offset, end - 1, stamped)

    def opens(self, batch: Batch) -> bool:
        """Whether a client's batch must be opened, so that its records can be scanned before the append."""
        return not (self._simple and needs_no_walk(batch, self._settings))

    def append_replicated(self, batches: list[Batch]) -> None:
        """Queue a leader's batches unchanged, with the offsets and epochs that the leader has assigned.

        Raises Damage if the log is offline or a batch does not continue the log. Raises KafkaError if not all batches
        can be appended at the moment. Batches below `end` have been queued in that case.
        """
        files = self.files
        files.require_online()
        if not files.segments.active.is_open:
            files.open_active()
        try:
            for batch in batches:
                if batch.base_offset < self.end or not batch.crc_ok():
                    raise Damage(
                        f"{self!r} was sent a batch at offset {batch.base_offset} that overlaps the log or has a "
                        "wrong CRC"
                    )
                if files.segments.active.needs_roll(batch, batch.last_offset, self._settings, files.world.wall_ms()):
                    self._roll_for(batch, batch.last_offset)
                if batch.is_control:
                    files.load_active_aborted()
                self._queue_batch(batch)
        except OSError as error:
            raise self.fail(error) from error

    def _queue_batch(self, batch: Batch) -> int:
        """Queue a batch, and return the new end of the log."""
        files = self.files
        if batch.leader_epoch != files.epochs.noted:
            if not files.made:
                files.make()
            files.epochs.note(batch.leader_epoch, batch.base_offset)
        files.segments.active.add(batch, self._settings)
        if batch.producer_id >= 0:
            ended = self.producers.update(batch)
            if ended is not None:
                note_end(self.producers, files.segments, files.segments.active, ended)
        self._queue.append(batch.view)
        end = self.end = batch.base_offset + batch.last_offset_delta + 1
        return end

    def roll(self) -> None:
        """Begin a new segment, unless the active segment is empty. Raises Damage, or KafkaError if that is not possible
        at the moment."""
        self.flush()
        files = self.files
        if not files.segments.active.size_bytes:
            return
        files.pool.require_room(files.world.disk)
        try:
            files.seal_active(self.end, self.producers)
        except OSError as error:
            raise self.fail(error) from error
        files.add_segment(self.end, self._jitter_ms())

    def _roll_for(self, batch: Batch, last_offset: int) -> None:
        """Roll before a batch. On a slow device, rolling is postponed if possible, because it needs several writes.
        Raises Damage, KafkaError."""
        if not self.files.device.is_slow or not may_grow(
            self.files.segments.active, batch, last_offset, self._settings
        ):
            self.roll()

    def _jitter_ms(self) -> int:
        limit = min(self._settings.segment_jitter_ms, self._settings.segment_ms)
        return self.files.world.random.randrange(limit) if limit > 0 else 0

    # writing

    def require_room(self) -> None:
        """Raise REQUEST_TIMED_OUT if too many bytes are waiting to be written. Called before an append."""
        device = self.files.device
        if device.is_full:
            waiting = device.queued_bytes
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{device.path}: {waiting} bytes are waiting to be written")

    def flush(self, *, wait: bool = True) -> None:
        """Write all queued batches. On a slow device a thread writes them, and `wait` waits for it.

        Raises Damage if the log is offline, or KafkaError if no file descriptor is free. The batches stay queued then.
        """
        queue = self._queue
        files = self.files
        if self.behind is not None or files.device.is_slow:
            self._flush_behind(wait=wait)
            return
        if not queue:
            return
        if files.offline is not None:
            queue.clear()
            raise Damage(files.offline)
        segment = files.segments.active
        if not segment.is_open:
            self._open(segment)
            if files.device.is_slow:  # opening it has shown this, or saving the indexes of a file closed instead
                self._flush_behind(wait=wait)
                return
        queued_bytes = segment.size_bytes - segment.written_bytes
        if queued_bytes > WRITTEN_AT_ONCE_BYTES and not wait and not files.device.is_full:
            self._flush_behind(wait=False)
            return
        if len(queue) > 1 and queued_bytes <= _JOINED_BYTES:
            queue = [b"".join(queue)]
        files.write(segment, queue, self.end)
        self._queue.clear()

    def _open(self, segment: Segment) -> None:
        """Open the file of a segment before its queued batches are written. Raises Damage, KafkaError."""
        try:
            segment.handle()
        except OSError as error:
            self._queue[:] = [b"".join(self._queue)]  # copied because the buffers will be reused
            raise self.files.unchanged(error) from error

    def _flush_behind(self, *, wait: bool) -> None:
        queue, files = self._queue, self.files
        if queue:
            self._open(files.segments.active)
            chunks = list(_chunks(queue, self.end))
            queue.clear()
            if files.offline is not None:
                raise Damage(files.offline)
            if self.behind is None:
                self.behind = WriteBehind(files, self._write_ended, self._caught_up)
            behind = self.behind
            for data, end in chunks:
                behind.add(data, end, waits=wait)
        if wait and self.behind is not None:
            self.behind.wait()

    def _write_ended(self) -> None:
        self._on_written()

    def _caught_up(self) -> None:
        self.behind = None

    async def until_written(self) -> None:
        """Return when no thread is writing for this log: all flushed batches are written, or the log is offline."""
        while self.behind is not None:
            await self.behind.ended()

    # reading

    def _check_range(self, offset: int) -> None:
        self.require_online()
        if not self.start <= offset <= self.end:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not within [{self.start}, {self.end}]")

    def read(self, offset: int, max_bytes: int, *, upper: int, min_one: bool) -> Buffer | None:
        """Read whole batches below `upper`, beginning with the batch that contains `offset`, at most `max_bytes`.

        With `min_one`, the first batch is returned even if it is larger. The result is None if the read would wait for
        the disk; call `read_cold` then. Raises OFFSET_OUT_OF_RANGE below `start` or above `end`, KAFKA_STORAGE_ERROR.
        """
        files = self.files
        if files.offline is not None or not self.start <= offset <= self.end:
            self._check_range(offset)
        written_end = files.written_end
        try:
            return files.reader.read(offset, max_bytes, min(upper, written_end), written_end, min_one=min_one)
        except (OSError, Damage) as error:
            raise files.refusal(error) from error

    async def read_cold(self, offset: int, max_bytes: int, *, upper: int, min_one: bool) -> Buffer:
        """Like `read`, but reads on another thread if necessary."""
        while True:
            self._check_range(offset)
            files = self.files
            try:
                return await files.reader.read_cold(offset, max_bytes, min(upper, files.written_end), min_one=min_one)
            except SegmentGone:
                continue  # if cleaning has replaced the segment, try again; if retention deleted it, the check raises
            except (OSError, Damage) as error:
                raise files.refusal(error) from error

    def bytes_up_to(self, offset: int, last: int) -> int | None:
        """The number of bytes that a read from `offset` needs to include the batch with `last`, if that is in the same
        segment; it may be too large by an interval of the index. None if the index has to be loaded first.

        Raises KAFKA_STORAGE_ERROR.
        """
        try:
            return self.files.reader.bytes_up_to(offset, last)
        except (OSError, Damage) as error:
            raise self.files.refusal(error) from error

    async def load_index(self, offset: int) -> None:
        """Load the index that `bytes_up_to` needs, on another thread. Raises KAFKA_STORAGE_ERROR."""
        files = self.files
        try:
            await files.reader.load_index(offset)
        except (OSError, Damage) as error:
            raise files.refusal(error) from error

    def aborted_within(self, offset: int, records: Buffer) -> list[AbortedTransaction]:
        """The aborted transactions with records in `records`, ordered by first offset. `records` was read beginning at
        `offset`.

        May wait for the disk. Raises KAFKA_STORAGE_ERROR.
        """
        files = self.files
        if not files.segments.any_aborted:
            return []
        try:
            return aborted_within(files.segments, offset, records)
        except (OSError, Damage) as error:
            raise files.refusal(error) from error

    def offset_for_timestamp(self, timestamp: int) -> Found | None:
        """Offset, timestamp and leader epoch of the first record with a timestamp of at least `timestamp`. May wait for
        the disk."""
        return at_once(self.looking_up(timestamp))

    def max_timestamp(self) -> Found | None:
        """Offset, timestamp and leader epoch of the first record with the largest timestamp (KIP-734). May wait for the
        disk."""
        return at_once(self.looking_up(None))

    def looking_up(self, timestamp: int | None) -> Work[Found | None]:
        """`offset_for_timestamp` in slices, or `max_timestamp` if the timestamp is None."""
        self.require_online()
        files = self.files
        try:
            if timestamp is None:
                return (yield from newest(files.segments, self.start))
            return (yield from first_at_or_after(files.segments, timestamp, self.start))
        except OSError as error:
            raise files.refusal(error) from error

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of the record at `offset`; -1 if it is unknown."""
        return self.files.epochs.epoch_at(offset)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch that is at most `epoch`, and its end offset; (-1, -1) for an unknown epoch (KIP-320)."""
        return self.files.epochs.end_of(epoch, self.end)

    # watermarks

    def advance(self, high_watermark: int) -> None:
        """Set the high watermark. All records below it are committed."""
        self.high_watermark = high_watermark
        self.last_stable = high_watermark if self.producers.transactions.quiet else self.stable_below(high_watermark)

    def stable_below(self, high_watermark: int) -> int:
        """The last stable offset for this high watermark."""
        return max(self.producers.transactions.stable_below(high_watermark), self.start)

    def advance_start(self, offset: int) -> None:
        """Raise the log start offset to `offset` (DeleteRecords). The next retention check deletes the segments below
        it.

        Raises KAFKA_STORAGE_ERROR.
        """
        assert self.start <= offset <= self.high_watermark, "only committed records can be deleted, and only once"
        if offset > self.start:
            files = self.files
            files.pool.require_room(files.world.disk)
            try:
                self.move_start(offset)
                self._on_start_moved()
            except OSError as error:
                raise files.refusal(error) from error

    def move_start(self, offset: int) -> None:
        """Set the log start offset, without notifying the directory. Raises OSError."""
        self.start = offset
        self.high_watermark = max(self.high_watermark, offset)
        self.last_stable = max(self.last_stable, offset)
        # without saving, the next start removes the same entries again
        self.files.epochs.cut_start(offset, save=not self.files.device.is_slow)

    def note_cleaned(self, end: int) -> None:
        """Record that compaction has cleaned the log up to `end`."""
        self.cleaned_end = end

    def begin_epoch(self, epoch: int) -> None:
        """Begin a leader epoch at `end`, because this replica is the leader from now on."""
        self.files.epochs.assign(epoch, self.end, save=False)

    # syncing, truncating, closing

    async def sync(self, *, is_chore: bool = False) -> None:
        """Return when all flushed batches are on disk. Concurrent callers share one fdatasync.

        `is_chore` means that no request and no other node waits for the sync, so it may take a long time. Raises
        Damage.
        """
        files = self.files
        try:
            is_forced = self._settings.fsync_always
            await self._sync.up_to(files.written_end, log_start=self.start, is_chore=is_chore, is_forced=is_forced)
        except OSError as error:
            if files is self.files:  # otherwise the replica has moved to another disk in the meantime
                raise self.fail(error) from error
        if self.offline is not None:
            raise Damage(self.offline)

    def sync_blocking(self) -> None:
        """Sync all written batches on the calling thread. Raises OSError."""
        self._sync.blocking(self.start)

    def truncate_to(self, offset: int) -> None:
        """Delete all records at and after `offset`, because the leader does not have them. Raises Damage, or KafkaError
        if that is not possible at the moment.

        An epoch that began at the end of the log is also removed, because its leader may not have written any records.
        """
        self.flush()
        files = self.files
        files.pool.require_room(files.world.disk)
        try:
            if offset >= self.end:
                files.epochs.cut_end(self.end, save=files.made)
            elif offset < files.segments.first.base_offset:
                self.begin_anew(offset)
            else:
                files.cut(offset, self._settings.file_delete_delay_ms)
                self._end_at(files.written_end)
        except OSError as error:
            raise self.fail(error) from error

    def begin_anew(self, offset: int) -> None:
        """Delete all records, and begin an empty log at `offset`. Raises OSError, KafkaError."""
        self.files.begin_anew(offset, self._settings.file_delete_delay_ms)
        self._end_at(offset)
        self.move_start(offset)

    def _end_at(self, end: int) -> None:
        self.end = end
        if end < self.cleaned_end:
            self.cleaned_end = end  # batches that are appended after this have not been cleaned
            self._on_start_moved()
        self.start = min(self.start, end)
        self.high_watermark = min(self.high_watermark, end)
        self.producers = self.files.load_producers(end, self.producer_expiration_ms)
        self.last_stable = min(self.last_stable, self.stable_below(self.high_watermark))

    def apply_retention(self, now_ms: int) -> int:
        """Delete segments by time, size and log start offset, and return their number. Raises Damage, or KafkaError if
        that is not possible at the moment."""
        self.producers.expire(now_ms, self.producer_expiration_ms)
        files, settings = self.files, self._settings
        segments, disk = files.segments, files.world.disk
        try:
            count, why = expired(disk, segments, settings, self.start, self.high_watermark, self.end, now_ms)
            if not count:
                return 0
            files.pool.require_room(disk)
            if count == len(segments):
                self.roll()
            first = segments[count].base_offset
            log.info("%r: %d segments below offset %d are deleted: %s", self, count, first, why)
            if first > self.start:
                self.move_start(first)
            files.drop_first(count, settings.file_delete_delay_ms)
        except OSError as error:
            raise files.unchanged(error) from error
        return count

    def replace_files(self, future: Log) -> None:
        """Continue with the files of another log, which has the same batches, all of them on disk. The producer state
        in memory is kept, because it is more complete than that in the files."""
        future.files.replace(self.files)
        self.files, self._sync = future.files, future._sync
        self.cleaned_end = 0

    def retire(self, why: str) -> None:
        """Go offline and never open the files again, because the directory is deleted or abandoned."""
        self.files.go_offline(why)
        self.files.retire()
        self._on_written = self._on_start_moved = _nobody_waits  # their owner refers to this log, and is freed with it

    def _write_out(self) -> None:
        """Write the files of a clean shutdown: queued batches, indexes and a producer snapshot. Raises OSError, Damage,
        KafkaError."""
        self.flush()
        self.files.write_out(self.end, self.producers)

    async def close_soon(self) -> None:
        """Like `close`, but sync on other threads. The caller must sync the log directory. Raises Damage."""
        try:
            if self.offline is None:
                self._write_out()
                await self._sync.at_stop(self.start)
        except (OSError, KafkaError) as error:
            raise self.fail(error) from error
        self.drop_files()

    def close(self, *, sync: bool = True) -> None:
        """Write the files of a clean shutdown and close the log, which waits for the disk. Raises Damage."""
        try:
            if self.offline is None:
                self._write_out()
                if sync:
                    self._sync.blocking(self.start)
        except (OSError, KafkaError) as error:
            raise self.fail(error) from error
        finally:
            self.drop_files()

    def drop_files(self) -> None:
        """Close all files without writing."""
        self.files.drop()


def _nobody_waits() -> None:
    """The default callback of a log that does not belong to a partition yet."""


def _chunks(queue: list[Buffer], end: int) -> Iterator[tuple[bytes, int]]:
    """Copy the queued bytes into chunks of at most WRITE_BYTES or one batch. Yield each chunk with its end offset.

    The bytes are copied because their buffers will be reused.
    """
    taken, size_bytes = list[Buffer](), 0
    for view in queue:
        if taken and size_bytes + len(view) > WRITE_BYTES:
            yield b"".join(taken), base_offset_of(view)
            taken, size_bytes = [], 0
        taken.append(view)
        size_bytes += len(view)
    yield b"".join(taken), end
