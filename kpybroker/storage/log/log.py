"""The log of one partition: append, flush, read, truncate. All state of the broker is in such logs.

Always `start <= last_stable <= high_watermark <= end`. `end` includes queued batches, `written_end` those in the page
cache, `synced_end` those on disk. The log's owner (a partition, a follower, or the metadata log) moves
`high_watermark`. `last_stable` follows it, up to the first transaction that is open or whose marker has not committed.
The files are in `LogFiles`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

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
    appended,
    batch_time_is_ours,
    changes_batches,
    check_header,
    needs_no_walk,
    opening,
)
from kpybroker.storage.log.log_files import LogFiles
from kpybroker.storage.log.reading import aborted_within
from kpybroker.storage.log.recovery import Loaded, Origin, open_files
from kpybroker.storage.log.retention import expired
from kpybroker.storage.log.slices import Work, at_once
from kpybroker.storage.log.syncing import GroupSync
from kpybroker.storage.log.timestamps import Found, first_at_or_after, newest
from kpybroker.storage.log.write_behind import WRITE_BYTES, WriteBehind, may_grow
from kpybroker.storage.producers.loading import note_end
from kpybroker.storage.producers.producers import PRODUCER_EXPIRATION_MS, ProducerStates
from kpybroker.storage.producers.transactions import Verification
from kpybroker.wire.records.batch import Batch, base_offset_of
from kpybroker.world import Buffer, World

log = logging.getLogger(__name__)

_JOINED_BYTES = 64 * 1024
"""Queued batches up to this size are joined before they are written: cheaper than many small buffers."""
WRITTEN_AT_ONCE_BYTES = 8 << 20
"""The loop writes at most this in one call, up to 15 ms of copying into the page cache; a thread writes more."""


class Log:
    """One partition's log on one disk. Not thread-safe."""

    __slots__ = (
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
        """Compaction has cleaned everything below this offset, which is at most `end`."""
        self.behind: WriteBehind | None = None
        """The writes on a thread; None if there are none."""
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
        """Load the log, and recover it unless `clean`; nothing below `synced_end` is truncated. Raises Damage.

        A missing directory is created: at once, or with the first batch if `lazy`."""
        origin = Origin(
            clean, recovery_point, log_start, world.wall_ms(), producer_expiration_ms, cleaned_end, synced_end
        )
        pool = FilePool(64) if pool is None else pool
        key = topic, partition
        files, of = open_files(world, pool, directory, key, topic_id, settings, origin, lazy=lazy)
        opened = cls(files, of, settings, producer_expiration_ms)
        of.segments.active.jitter_roll(opened._jitter_ms())
        return opened

    def __repr__(self) -> str:
        return f"Log({self.topic}-{self.partition}, {self.start}..{self.end})"

    @property
    def settings(self) -> LogSettings:
        return self._settings

    def configure(self, settings: LogSettings) -> None:
        """Adopt new settings."""
        self._settings = settings
        self._simple = not changes_batches(settings)

    # the files, as others see them

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
        """Everything below this offset is in the page cache."""
        return self.files.written_end

    @property
    def synced_end(self) -> int:
        """Everything below this offset is on disk."""
        return self.files.synced_end

    @property
    def size_bytes(self) -> int:
        return self.files.segments.size_bytes

    @property
    def offline(self) -> str | None:
        """Why the log is offline; None while it serves."""
        return self.files.offline

    @property
    def is_syncing(self) -> bool:
        """Whether a sync is in progress."""
        return self._sync.is_running

    def require_online(self) -> None:
        """Raises KAFKA_STORAGE_ERROR once the log is offline."""
        self.files.require_online()

    def fail(self, error: OSError | Damage | KafkaError) -> Damage:
        """Take the log offline; returns the error to raise."""
        return self.files.fail(error)

    def listen(
        self,
        on_start_moved: Callable[[], None],
        before_cut: Callable[[int], None],
        on_io_error: Callable[[str, int, str], None] | None,
    ) -> None:
        """Set the directory's callbacks; `on_start_moved` runs when `start` or `cleaned_end` has to be saved. The
        others are those of `LogFiles.listen`."""
        self._on_start_moved = on_start_moved
        self.files.listen(before_cut, on_io_error)

    def tell(self, on_written: Callable[[], None]) -> None:
        """Call `on_written` when a thread's write has ended; if the write failed, the log is offline."""
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
        """Assign offsets and epoch in place and queue the batches; `flush` must write them before the views change.

        A client's batch is validated unless it is `known` to be sound, and must be the only one; `verified` says that
        it may begin a transaction. Raises KafkaError, in which case nothing was appended.
        """
        files = self.files
        if files.offline is not None:
            files.require_online()
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
                batch.stamp(stamped := now_ms)  # the current time: times of append must not go backwards
        segments = files.segments
        if not segments.active.is_open:
            files.open_active()
        if len(batches) > 1:
            files.pool.require_room(files.world.disk)  # so that no batch is refused after another one was queued
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
        return appended((base_offset, end - 1, stamped, False))

    def opens(self, batch: Batch) -> bool:
        """Whether a client's batch must be opened, to scan its records, before it is appended."""
        return not (self._simple and needs_no_walk(batch, self._settings))

    def append_replicated(self, batches: list[Batch]) -> None:
        """Queue a leader's batches unchanged, with the offsets and epochs that it assigned.

        Raises Damage: the log is offline, or a batch does not continue the log. KafkaError: for now, not all batches
        can be appended; those below `end` are queued.
        """
        files = self.files
        files.require_online()
        if not files.segments.active.is_open:
            files.open_active()
        try:
            for batch in batches:
                if batch.base_offset < self.end or not batch.crc_ok():
                    raise Damage(f"{self!r} was sent a batch from offset {batch.base_offset}, or one with a wrong CRC")
                if files.segments.active.needs_roll(batch, batch.last_offset, self._settings, files.world.wall_ms()):
                    self._roll_for(batch, batch.last_offset)
                if batch.is_control:
                    files.load_active_aborted()
                self._queue_batch(batch)
        except OSError as error:
            raise self.fail(error) from error

    def _queue_batch(self, batch: Batch) -> int:
        """Returns the end of the log with the batch."""
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
        """Begin a new segment, unless the active one is empty. Raises Damage; KafkaError if that is not possible
        now."""
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
        """Roll before a batch. While the device is slow, this is postponed, as it is several writes. Raises Damage."""
        if not self.files.device.is_slow or not may_grow(
            self.files.segments.active, batch, last_offset, self._settings
        ):
            self.roll()

    def _jitter_ms(self) -> int:
        limit = min(self._settings.segment_jitter_ms, self._settings.segment_ms)
        return self.files.world.random.randrange(limit) if limit > 0 else 0

    # writing

    def require_room(self) -> None:
        """Called before an append that a thread will write. Raises REQUEST_TIMED_OUT."""
        device = self.files.device
        if device.is_full:
            waiting = device.queued_bytes
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{device.path}: {waiting} bytes wait to be written")

    def flush(self, *, wait: bool = True) -> None:
        """Write all queued batches, in one call. Raises Damage: the log is offline. KafkaError: they stay queued, for
        lack of descriptors.
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
        queued_bytes = segment.size_bytes - segment.written_bytes
        if queued_bytes > WRITTEN_AT_ONCE_BYTES and not wait and not files.device.is_full:
            self._flush_behind(wait=False)
            return
        if len(queue) > 1 and queued_bytes <= _JOINED_BYTES:
            queue = [b"".join(queue)]
        try:
            files.write(segment, queue, self.end)
        except KafkaError:
            self._queue[:] = [b"".join(queue)]  # the buffers behind the views are about to be reused
            raise
        self._queue.clear()

    def _open(self, segment: Segment) -> None:
        """Open the file to write to. Raises Damage, KafkaError."""
        try:
            segment.handle()
        except OSError as error:
            self._queue[:] = [b"".join(self._queue)]  # the buffers behind the views are about to be reused
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
        """Return when no thread writes for this log: everything flushed is written, or the log is offline."""
        while self.behind is not None:
            await self.behind.ended()

    # reading

    def _check_range(self, offset: int) -> None:
        self.require_online()
        if not self.start <= offset <= self.end:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is not within [{self.start}, {self.end}]")

    def read(self, offset: int, max_bytes: int, *, upper: int, min_one: bool) -> Buffer | None:
        """Whole batches from the one that holds `offset`, all records below `upper`, at most `max_bytes`.

        `min_one`: the first batch even if it is larger. None: the read would wait for the disk; `read_cold` does that.
        Raises OFFSET_OUT_OF_RANGE below `start` or above `end`, KAFKA_STORAGE_ERROR.
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
        """Like `read`, but off the loop."""
        while True:
            self._check_range(offset)
            files = self.files
            try:
                return await files.reader.read_cold(offset, max_bytes, min(upper, files.written_end), min_one=min_one)
            except SegmentGone:
                continue  # cleaning has replaced the segment; if retention deleted it, the offset is out of range
            except (OSError, Damage) as error:
                raise files.refusal(error) from error

    def aborted_within(self, offset: int, records: Buffer) -> list[AbortedTransaction]:
        """The aborted transactions that have records among those read from `offset` on, by their first offset.

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
        """(offset, timestamp, leader epoch) of the first record at or after `timestamp`. May wait for the disk."""
        return at_once(self.looking_up(timestamp))

    def max_timestamp(self) -> Found | None:
        """(offset, timestamp, leader epoch) of the first record with the largest timestamp (KIP-734)."""
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
        """The leader epoch that wrote `offset`; -1 if it is unknown."""
        return self.files.epochs.epoch_at(offset)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(the largest epoch at or below `epoch`, where it ended); (-1, -1) for an unknown one (KIP-320)."""
        return self.files.epochs.end_of(epoch, self.end)

    # watermarks

    def advance(self, high_watermark: int) -> None:
        """Everything below this offset has committed."""
        self.high_watermark = high_watermark
        self.last_stable = high_watermark if self.producers.transactions.quiet else self.stable_below(high_watermark)

    def stable_below(self, high_watermark: int) -> int:
        """The last stable offset for this high watermark."""
        return max(self.producers.transactions.stable_below(high_watermark), self.start)

    def advance_start(self, offset: int) -> None:
        """Records below `offset` are deleted (DeleteRecords); the next retention deletes their segments.

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
        """Begin at `offset`, without notifying the directory. Raises OSError."""
        self.start = offset
        self.high_watermark = max(self.high_watermark, offset)
        self.last_stable = max(self.last_stable, offset)
        self.files.epochs.cut_start(offset, save=not self.files.device.is_slow)  # the next start truncates them again

    def note_cleaned(self, end: int) -> None:
        """Compaction has cleaned everything below `end`."""
        self.cleaned_end = end

    def begin_epoch(self, epoch: int) -> None:
        """This replica leads from now on: the epoch begins at `end`."""
        self.files.epochs.assign(epoch, self.end, save=False)

    # syncing, cutting, closing

    async def sync(self, *, is_chore: bool = False) -> None:
        """Return when everything flushed is on disk; callers share one fdatasync. A sync for a chore may take its time,
        as no request and no other node waits for it. Raises Damage."""
        files = self.files
        try:
            is_forced = self._settings.fsync_always
            await self._sync.up_to(files.written_end, log_start=self.start, is_chore=is_chore, is_forced=is_forced)
        except OSError as error:
            if files is self.files:  # otherwise the replica has moved in the meantime, and all of it is on another disk
                raise self.fail(error) from error
        if self.offline is not None:
            raise Damage(self.offline)

    def sync_blocking(self) -> None:
        """Sync everything written, on the caller. Raises OSError."""
        self._sync.blocking(self.start)

    def truncate_to(self, offset: int) -> None:
        """Delete everything at and after `offset`, which the leader never had. Raises Damage; KafkaError if that is not
        possible now.

        An epoch that began at the end is removed too: its leader may not have written anything.
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
        """Delete everything: the log is empty and begins at `offset`. Raises OSError, KafkaError."""
        self.files.begin_anew(offset, self._settings.file_delete_delay_ms)
        self._end_at(offset)
        self.move_start(offset)

    def _end_at(self, end: int) -> None:
        self.end = end
        if end < self.cleaned_end:
            self.cleaned_end = end  # batches appended from here on were never cleaned
            self._on_start_moved()
        self.start = min(self.start, end)
        self.high_watermark = min(self.high_watermark, end)
        self.producers = self.files.load_producers(end, self.producer_expiration_ms)
        self.last_stable = min(self.last_stable, self.stable_below(self.high_watermark))

    def apply_retention(self, now_ms: int) -> int:
        """Delete segments by time, size and start offset; returns how many. Raises Damage; KafkaError if that is not
        possible now."""
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
        """Continue with the files of another log, which has the same batches, all on disk. The producer state in memory
        stays, because it is more complete than that in the files."""
        future.files.replace(self.files)
        self.files, self._sync = future.files, future._sync
        self.cleaned_end = 0

    def retire(self, why: str) -> None:
        """The directory is deleted or abandoned: go offline, and never open its files again."""
        self.files.go_offline(why)
        self.files.retire()

    def _write_out(self) -> None:
        """Write everything that a clean shutdown leaves: indexes and producer snapshot. Raises OSError, Damage,
        KafkaError."""
        self.flush()
        self.files.write_out(self.end, self.producers)

    async def close_soon(self) -> None:
        """Like `close`, with its syncs in threads; the caller syncs the log directory. Raises Damage."""
        try:
            if self.offline is None:
                self._write_out()
                await self._sync.at_stop(self.start)
        except (OSError, KafkaError) as error:
            raise self.fail(error) from error
        self.drop_files()

    def close(self, *, sync: bool = True) -> None:
        """Write everything that a clean shutdown leaves; waits for the disk. Raises Damage."""
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
    """The default callback, for a log that does not belong to a partition yet."""


def _chunks(queue: list[Buffer], end: int) -> Iterator[tuple[bytes, int]]:
    """Copies of the queued bytes, each at most WRITE_BYTES or one batch, and the end offset of each: the buffers behind
    the views are about to be reused."""
    taken, size_bytes = list[Buffer](), 0
    for view in queue:
        if taken and size_bytes + len(view) > WRITE_BYTES:
            yield b"".join(taken), base_offset_of(view)
            taken, size_bytes = [], 0
        taken.append(view)
        size_bytes += len(view)
    yield b"".join(taken), end
