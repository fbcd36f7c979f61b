"""The files of one log: segments, leader epochs and producer snapshots, and the offsets up to which they are written
and synced.

`Log` is based on this module and adds watermarks, producer state and the queue of appended batches. This module does
not depend on `Log`. When a replica moves to another directory, its `Log` object continues with new `LogFiles`.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.storage.files.checkpoint_files import replace_file, write_topic_id
from kpybroker.storage.files.epochs import LeaderEpochs
from kpybroker.storage.files.file_pool import FilePool, is_short
from kpybroker.storage.files.segment import LOG, SNAPSHOT, Segment, file_name
from kpybroker.storage.files.segments import Segments
from kpybroker.storage.log.reading import Reader
from kpybroker.storage.log.retention import unlink_all
from kpybroker.storage.log.slices import at_once
from kpybroker.storage.log.swapping import DELETED, FILE_SUFFIXES, finish_swap, prepare_swap
from kpybroker.storage.producers.loading import loading_producers, snapshot_offsets
from kpybroker.storage.producers.producers import ProducerStates
from kpybroker.topics import TopicPartition
from kpybroker.world import Buffer, World

log = logging.getLogger(__name__)


class LogFiles:
    """The files of one partition in one directory. Not thread-safe."""

    __slots__ = (
        "_before_cut",
        "_on_io_error",
        "_sealed",
        "changed",
        "device",
        "directory",
        "epochs",
        "garbage",
        "generation",
        "made",
        "names_changed",
        "offline",
        "partition",
        "pool",
        "reader",
        "segments",
        "snapshot_end",
        "synced_end",
        "topic",
        "topic_id",
        "world",
        "written_end",
    )

    def __init__(
        self,
        world: World,
        pool: FilePool,
        directory: str,
        key: TopicPartition,
        topic_id: bytes | None,
        segments: Segments,
        epochs: LeaderEpochs,
        *,
        end: int,
        snapshot_end: int,
        made: bool,
    ) -> None:
        """`key` is the topic and partition. `segments` contain all batches below `end`, and all of them count as
        synced."""
        self.world = world
        self.pool = pool
        self.directory = directory
        self.topic, self.partition = key
        self.topic_id = topic_id
        self.device = world.disk.device(directory)
        self.made = made
        """Whether the directory exists. A partition that never had a batch may not have a directory."""
        self.segments = segments
        self.epochs = epochs
        self.reader = Reader(world.disk, segments)
        self.snapshot_end = snapshot_end
        """The offset of the newest producer snapshot; -1 if there is none."""
        self.garbage: list[tuple[int, str]] = []
        """Renamed files that have to be unlinked: the due time in ms of the steady clock, and the path."""
        self.offline: str | None = None
        """The reason why the log is offline; None if it is online."""
        self.changed = False
        """Whether the log was written to or truncated since it was opened, so that a clean shutdown has to write
        files."""
        self.written_end = self.synced_end = end
        """Records below `written_end` are in the page cache. Records below `synced_end` are on disk."""
        self.names_changed = False
        """Whether files were created whose names may not be on disk yet."""
        self.generation = 0
        """The number of truncations and replacements of files. If it has changed, bytes that were read may be
        outdated."""
        self._sealed: list[Segment] = []
        self._before_cut: Callable[[int], None] | None = None
        self._on_io_error: Callable[[str, int, str], None] | None = None

    def listen(
        self, before_cut: Callable[[int], None] | None, on_io_error: Callable[[str, int, str], None] | None
    ) -> None:
        """Set callbacks. `before_cut(offset)` is called before batches at and after an offset are replaced, and lowers
        the recovery point on disk. `on_io_error(topic, partition, offline)` is called when the disk has failed."""
        self._before_cut = before_cut
        self._on_io_error = on_io_error

    # errors

    def require_online(self) -> None:
        """Raise KAFKA_STORAGE_ERROR if the log is offline."""
        if self.offline is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline)

    def go_offline(self, why: str) -> None:
        """Go offline, unless the log is already offline."""
        if self.offline is None:
            self.offline = why

    def fail(self, error: OSError | Damage | KafkaError) -> Damage:
        """Take the log offline, and return the error to raise."""
        if self.offline is None:
            self.offline = f"{self.topic}-{self.partition} in {self.directory}: {error}"
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                self.offline += "; free space and start the broker again: acknowledged records are kept"
            log.error("log is offline: %s", self.offline)
            if isinstance(error, OSError) and not is_short(error) and self._on_io_error is not None:
                self._on_io_error(self.topic, self.partition, self.offline)
        return Damage(self.offline)

    def refusal(self, error: OSError | Damage) -> KafkaError:
        """The error for a caller that has not changed the log. Take the log offline, unless the cause is only that no
        file descriptor is free."""
        if is_short(error):
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{error}; try again when connections have closed")
        self.fail(error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline)

    def unchanged(self, error: OSError) -> Damage | KafkaError:
        """Like `refusal`, but the error is Damage if the log goes offline."""
        return self.refusal(error) if is_short(error) else self.fail(error)

    def fail_write(self, segment: Segment, error: OSError) -> Damage:
        """Take the log offline after a failed write, and truncate the bytes that the write has left."""
        damage = self.fail(error)
        try:
            segment.drop_unwritten()
        except OSError:
            log.warning("%s%s may end in a torn batch; recovery will truncate it", segment.path, LOG)
        return damage

    # writing

    def make(self) -> None:
        """Create the partition's directory. Raises OSError."""
        if not self.world.disk.exists(self.directory):  # it exists after an attempt that failed for lack of descriptors
            self.world.disk.mkdir(self.directory)
        if self.topic_id is not None:
            write_topic_id(self.world.disk, self.directory, self.topic_id)
        self.made = True

    def open_active(self) -> None:
        """Open the active segment's file before the log is changed, so that the caller can retry if no file descriptor
        is free.

        Raises KAFKA_STORAGE_ERROR. Any other cause than a lack of descriptors takes the log offline.
        """
        try:
            if not self.made:
                self.make()
            self.segments.active.handle()
        except OSError as error:
            raise self.refusal(error) from error

    def load_active_aborted(self) -> None:
        """Load the active segment's transaction index, before a marker is appended. Raises the same errors as
        `open_active`."""
        try:
            self.segments.active.aborted.load()
        except (OSError, Damage) as error:
            raise self.refusal(error) from error

    def write(self, segment: Segment, buffers: Sequence[Buffer], end: int) -> None:
        """Write all queued bytes of the active segment, which is open, in one call, and set `written_end` to `end`.
        Raises Damage if the log goes offline."""
        is_first = not segment.written_bytes
        try:
            segment.write(buffers)
        except OSError as error:
            raise self.fail_write(segment, error) from error
        if is_first:
            self.names_changed = True
        self.written_end = end
        self.changed = True

    def note_new_names(self) -> None:
        """Store that files were created, so that the directory has to be synced."""
        self.names_changed = True

    def wrote(self, segment: Segment, size_bytes: int, end: int) -> None:
        """Count `size_bytes` that a thread has written, and set `written_end` to `end`."""
        segment.wrote(size_bytes)
        self.written_end = end
        self.changed = True

    # segments

    def seal_active(self, end: int, producers: ProducerStates) -> None:
        """Finish the active segment, which ends at `end`. A new segment must be added next. Raises OSError."""
        self.segments.active.seal()
        self.take_snapshot(end, producers)
        self._sealed.append(self.segments.active)

    def add_segment(self, base_offset: int, roll_jitter_ms: int) -> None:
        """Add a new active segment."""
        segment = Segment(self.world.disk, self.pool, self.directory, base_offset, created_ms=self.world.wall_ms())
        segment.jitter_roll(roll_jitter_ms)
        segment.aborted.begin()
        self.segments.add(segment)

    def take_snapshot(self, end: int, producers: ProducerStates) -> None:
        """Write a snapshot of the producer state at `end`, if batches were appended since the last one. Raises
        OSError."""
        if end > max(self.snapshot_end, self.segments.first.base_offset):
            self.write_snapshot(end, producers)

    def write_snapshot(self, end: int, producers: ProducerStates) -> None:
        """Write a snapshot of the producer state at `end`. Raises OSError."""
        path = f"{self.directory}/{file_name(end, SNAPSHOT)}"
        replace_file(self.world.disk, path, producers.build_snapshot())
        self.snapshot_end = end

    def load_producers(self, end: int, expiration_ms: int) -> ProducerStates:
        """The producer state at `end`, from a snapshot and the batches after it. Raises OSError, Damage."""
        now_ms = self.world.wall_ms()
        producers: ProducerStates = at_once(
            loading_producers(self.world.disk, self.directory, self.segments, end, now_ms, expiration_ms, end)
        )
        self.snapshot_end = producers.snapshot_offset
        return producers

    def swap(self, old: list[Segment], new: Segment, delay_ms: int) -> None:
        """Replace the neighbouring segments `old` with `new`, whose files end in `.cleaned`. Raises OSError.

        After an error, the caller must take the log offline, and the next start completes the swap.
        """
        disk = self.world.disk
        prepare_swap(disk, new.path)
        self.segments.replace(old, new)
        self._remove(old, delay_ms)
        for segment in old[1:]:
            snapshot = segment.path + SNAPSHOT
            if segment.base_offset != self.snapshot_end and disk.exists(snapshot):
                self._discard(snapshot, delay_ms)
        finish_swap(disk, new.path)

    def drop_first(self, count: int, delay_ms: int) -> None:
        """Delete the `count` oldest segments. Their files are unlinked `delay_ms` later. Raises OSError."""
        gone = self.segments.take_first(count)
        first = self.segments.first
        if not first.size_bytes:
            first.handle()  # create the file: after a crash, its name is the only source of the next offset
            self.names_changed = True
        self._remove(gone, delay_ms)
        for offset in snapshot_offsets(self.world.disk, self.directory):
            if offset < first.base_offset:
                self.world.disk.unlink(f"{self.directory}/{file_name(offset, SNAPSHOT)}")

    def cut(self, offset: int, delay_ms: int) -> None:
        """Delete the batches at and after `offset`, including the batch that contains it. Set `written_end`
        accordingly.

        Raises OSError, KafkaError.
        """
        segments, disk = self.segments, self.world.disk
        self.reader.forget()
        number = segments.number_for(offset)
        self._lower_recovery_point(segments[number].base_offset)
        self._remove(segments.take_after(number), delay_ms)
        segment = segments.active
        located = segment.locate(offset)
        if located is not None:
            segment.cut(located[0], located[1])
        else:
            segment.recount()
        # before any append, so that a power failure cannot leave deleted and new batches in the same file
        disk.sync_blocking(segment.handle())
        disk.sync_directory_blocking(self.directory)
        end = segment.end_by_walk()  # below `offset` if cleaning has left a gap before the batch that was found
        for taken in snapshot_offsets(disk, self.directory):
            if taken > end:
                disk.unlink(f"{self.directory}/{file_name(taken, SNAPSHOT)}")
        self._end_at(end)

    def begin_anew(self, offset: int, delay_ms: int) -> None:
        """Delete all segments and begin with an empty one at `offset`. Raises OSError, KafkaError."""
        disk = self.world.disk
        self.pool.require_room(disk)
        self._lower_recovery_point(offset)
        fresh = Segment(disk, self.pool, self.directory, offset)
        fresh.aborted.begin()
        self._remove(self.segments.replace_all(fresh), delay_ms)
        for taken in snapshot_offsets(disk, self.directory):
            disk.unlink(f"{self.directory}/{file_name(taken, SNAPSHOT)}")
        fresh.handle()  # create the file: after a crash, its name is the only source of the next offset
        self.names_changed = True
        self._end_at(offset)

    def _lower_recovery_point(self, offset: int) -> None:
        """Lower the recovery point before a file is changed, so that after a crash recovery reads the batches that
        replace synced ones."""
        if self._before_cut is not None:
            self._before_cut(offset)

    def _end_at(self, end: int) -> None:
        self.changed = True
        self.generation += 1
        self.synced_end = min(self.synced_end, end)
        self.epochs.cut_end(end)
        self.written_end = end

    def _remove(self, segments: list[Segment], delay_ms: int) -> None:
        """Rename the files of segments. They are unlinked later on another thread. Raises OSError."""
        self.reader.forget()
        gone = set(map(id, segments))
        self._sealed = [segment for segment in self._sealed if id(segment) not in gone]
        for segment in segments:
            segment.retire()
            for suffix in FILE_SUFFIXES:
                path = segment.path + suffix
                if self.world.disk.exists(path):
                    self._discard(path, delay_ms)

    def _discard(self, path: str, delay_ms: int) -> None:
        self.world.disk.rename(path, path + DELETED)
        self.garbage.append((self.world.steady_ms() + delay_ms, path + DELETED))

    def take_garbage(self, now_ms: int | None = None) -> list[str]:
        """Remove and return the paths of files that are due to be unlinked, or of all files if no time is given."""
        due = [path for at_ms, path in self.garbage if now_ms is None or at_ms <= now_ms]
        self.garbage = [entry for entry in self.garbage if not (now_ms is None or entry[0] <= now_ms)]
        return due

    # syncing, for `GroupSync`

    @property
    def has_sealed(self) -> bool:
        """Whether full segments are waiting to be synced."""
        return bool(self._sealed)

    def recovered(self, recovery_point: int) -> None:
        """Set what has to be synced after an unclean shutdown: only records below `recovery_point` are on disk for
        sure."""
        segments = self.segments
        self.changed = self.names_changed = True
        self.synced_end = recovery_point
        self._sealed = [segments[at] for at in range(segments.first_in_doubt(recovery_point), len(segments) - 1)]

    def take_sealed(self) -> list[Segment]:
        """Remove and return the full segments that are waiting to be synced. The caller syncs them."""
        sealed, self._sealed = self._sealed, []
        return sealed

    def take_names_changed(self) -> bool:
        """Reset and return whether the directory has to be synced. The caller syncs it."""
        changed, self.names_changed = self.names_changed, False
        return changed

    def sync_failed(self, sealed: list[Segment]) -> None:
        """Store that `sealed` and the directory have yet to be synced, because a sync has failed."""
        self._sealed = [segment for segment in sealed if not segment.deleted] + self._sealed
        self.names_changed = True

    def synced(self, end: int, generation: int) -> None:
        """Set `synced_end` to `end`, unless the log was truncated since `generation`."""
        if generation == self.generation:
            self.synced_end = max(self.synced_end, end)

    def save_epochs(self, log_start: int) -> None:
        """Write the leader epochs before a sync, if there are records at or after `log_start`. Raises OSError.

        Recovery reads batches from the recovery point on, so the file must contain the epochs of earlier batches.
        """
        if self.epochs.unsaved and self.written_end > log_start:
            self.epochs.save()
            self.names_changed = True

    # closing, and moving to another directory

    def write_out(self, end: int, producers: ProducerStates) -> None:
        """Write the files of a clean shutdown, except the batches. Raises OSError."""
        active = self.segments.active
        if self.changed and active.written_bytes:
            active.seal()
        elif not active.written_bytes and self.world.disk.exists(active.path + LOG):
            active.save_indexes(make=True)
        if self.changed:
            self.take_snapshot(end, producers)
            if self.made:
                self.epochs.save_if_changed()
        unlink_all(self.world.disk, self.take_garbage())

    def drop(self) -> None:
        """Close all files without writing."""
        for segment in self.segments:
            segment.drop_files()

    def retire(self) -> None:
        """Close all files and never open them again, because the directory is being deleted."""
        for segment in self.segments:
            segment.retire()

    def renamed(self, directory: str) -> None:
        """Set the new path of the directory, which has been renamed."""
        self.directory = directory
        self.epochs.moved(directory)
        for segment in self.segments:
            segment.moved(directory)

    def replace(self, old: LogFiles) -> None:
        """Take the place of `old`, the files of a replica with the same batches, all of which are on disk here."""
        self.generation = old.generation + 1  # abandons a cleaning in progress, which has read the old files
        self.changed = True
        old.synced(old.written_end, old.generation)  # ends the wait for syncs of the old files
