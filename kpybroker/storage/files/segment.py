"""One segment of a log: the `.log` file and its indexes. The files are opened on first use."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from kpybroker.config import LogSettings
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.storage.files.batch_headers import BatchHeaders
from kpybroker.storage.files.file_pool import FilePool, is_short
from kpybroker.storage.files.index import OffsetIndex, TimeIndex, whole
from kpybroker.storage.files.txn_index import TxnIndex
from kpybroker.wire.records.batch import HEADER_BYTES, Batch
from kpybroker.world import Buffer, Disk

log = logging.getLogger(__name__)

LOG, INDEX, TIME_INDEX, SNAPSHOT, TXN_INDEX = ".log", ".index", ".timeindex", ".snapshot", ".txnindex"
MAX_RELATIVE_OFFSET: Final = 0x7FFFFFFF
_SAVES, _SAVE_ENTRIES = 8, 4096
"""An index is saved _SAVES times while it fills, and after _SAVE_ENTRIES new entries at the latest."""


def file_name(offset: int, suffix: str) -> str:
    return f"{offset:020d}{suffix}"


class SegmentGone(KafkaError):
    """Retention has deleted the segment, or cleaning has replaced it. The error for clients is OFFSET_OUT_OF_RANGE."""


class Segment:
    """The batches from `base_offset` on. `size_bytes` includes queued batches, and `written_bytes` only batches in the
    file."""

    __slots__ = (
        "_disk",
        "_doomed",
        "_handle",
        "_index",
        "_pool",
        "_times",
        "_users",
        "aborted",
        "base_offset",
        "created_ms",
        "deleted",
        "first_timestamp",
        "index_entries",
        "max_timestamp",
        "max_timestamp_offset",
        "path",
        "roll_jitter_ms",
        "since_entry_bytes",
        "size_bytes",
        "unsure_bytes",
        "used",
        "walked",
        "written_bytes",
    )

    def __init__(
        self,
        disk: Disk,
        pool: FilePool,
        directory: str,
        base_offset: int,
        size_bytes: int = 0,
        *,
        created_ms: int = 0,
    ) -> None:
        self._disk = disk
        self._pool = pool
        self.path = f"{directory}/{base_offset:020d}"
        """The path of the files, without a suffix."""
        self.base_offset = base_offset
        self.size_bytes = self.written_bytes = size_bytes
        self.unsure_bytes = size_bytes
        """Batches below this position were written before the start of the broker, and recovery has not read them."""
        self.walked = 0, 0
        """The begin and end of the part below `unsure_bytes` whose batch headers have been checked."""
        self.max_timestamp = self.max_timestamp_offset = -1
        """The largest timestamp, and the last offset of its batch."""
        self.first_timestamp: int | None = None
        """The maximum timestamp of the first batch, from which segment.ms is measured. It is None if the batch has not
        been read yet, and -1 if it has no timestamp."""
        self.created_ms = created_ms
        self.roll_jitter_ms = 0
        self.since_entry_bytes = 0
        self.index_entries = 0
        self.used = False
        self.deleted = False
        """Whether the files have been renamed or unlinked."""
        self._handle = -1
        self._doomed = False
        self._users = 0
        self._index: OffsetIndex | None = None
        self._times: TimeIndex | None = None
        self.aborted = TxnIndex(disk, self.path + TXN_INDEX)

    def __repr__(self) -> str:
        return f"Segment({self.path}, {self.size_bytes} bytes)"

    # files

    def handle(self) -> int:
        """The handle of the `.log`, which is opened if necessary. A missing file is created if no bytes were written
        yet. Raises OSError, SegmentGone."""
        self.used = True
        if self._handle < 0:
            if self.deleted:
                raise SegmentGone(ErrorCode.OFFSET_OUT_OF_RANGE, "the segment has been deleted")
            self._handle = self._pool.open(self._disk, self.path + LOG, create=not self.written_bytes)
            self._pool.opened(self)
            if self.base_offset and not self.written_bytes:
                self.save_indexes(make=True)  # for Apache Kafka, after a kill; the first of a log waits, for new topics
        return self._handle

    def read_at_once(self, size: int, position: int) -> Buffer | None:
        """Read up to `size` bytes of the `.log`; None if the read would wait for the disk. Raises OSError,
        SegmentGone."""
        return self._disk.pread_nowait(self.handle(), size, position)

    @property
    def is_open(self) -> bool:
        """Whether the `.log` is open, so that `handle` needs no file descriptor."""
        return self._handle >= 0

    @property
    def busy(self) -> bool:
        return self._users > 0

    def hold(self) -> int:
        """The handle of the `.log` for a thread. The file stays open until `let_go` is called."""
        handle = self.handle()
        self._users += 1
        return handle

    def let_go(self) -> None:
        self._users -= 1
        if self._doomed and not self._users:
            self.drop_files()

    def moved(self, directory: str) -> None:
        """Set the new path, because the log's directory has been renamed."""
        self.path = f"{directory}/{file_name(self.base_offset, '')}"
        self.aborted.moved(self.path + TXN_INDEX)

    def close_files(self) -> None:
        """Close the file, save the indexes, and free their memory.

        Indexes that cannot be saved stay in memory, and the error is raised when the log has to save them.
        """
        if not self._users:
            self._close()
        try:
            self.save_indexes()
        except OSError as error:
            log.warning("%s: the indexes are kept in memory: %s", self.path, error)
        else:
            self.drop_files()

    def retire(self) -> None:
        """Close the files and never open them again, because they are being deleted."""
        self.deleted = True
        self.drop_files()

    def drop_files(self) -> None:
        """Close the files without saving, because they are deleted or can no longer be written."""
        self._index = self._times = None
        self.aborted.drop()
        self._doomed = self._users > 0
        if self._doomed:
            return  # threads are using the file, and the last `let_go` closes it
        self._close()

    def _close(self) -> None:
        if self._handle >= 0:
            self._pool.closed(self)
            handle, self._handle = self._handle, -1
            self._disk.close(handle)

    def _read_index(self, suffix: str, entry_bytes: int) -> bytes:
        try:
            handle = self._pool.open(self._disk, self.path + suffix)
        except FileNotFoundError:
            return b""
        try:
            content = self._disk.pread(handle, self._disk.size(handle), 0)
        finally:
            self._disk.close(handle)
        return whole(content, entry_bytes)

    @property
    def has_indexes(self) -> bool:
        """Whether the indexes are in memory."""
        return self._index is not None

    async def load_indexes_cold(self) -> None:
        """Read the indexes on a thread. Raises OSError."""
        contents: list[bytes] = []
        for suffix in (INDEX, TIME_INDEX):
            content = b""
            if self._disk.exists(self.path + suffix):
                handle = self._pool.open(self._disk, self.path + suffix)
                try:
                    content = await self._disk.cold_read(handle, self._disk.size(handle), 0)
                finally:
                    self._disk.close(handle)
            contents.append(content)
        if self._index is None:
            self.handle()
            self._index = OffsetIndex(self.base_offset, whole(contents[0], OffsetIndex.entry_bytes))
            self._times = TimeIndex(self.base_offset, whole(contents[1], TimeIndex.entry_bytes))

    def index(self) -> OffsetIndex:
        """The offset index, read from its file if it is not in memory. Raises OSError."""
        if self._index is None:
            self._load_indexes()
        assert self._index is not None
        return self._index

    def times(self) -> TimeIndex:
        """The time index, read from its file if it is not in memory. Raises OSError."""
        if self._times is None:
            self._load_indexes()
        assert self._times is not None
        return self._times

    def _load_indexes(self) -> None:
        self.handle()  # so that the pool can free the memory of this segment
        offsets = times = b""
        if self.written_bytes:
            offsets = self._read_index(INDEX, OffsetIndex.entry_bytes)
            times = self._read_index(TIME_INDEX, TimeIndex.entry_bytes)
        self._index, self._times = OffsetIndex(self.base_offset, offsets), TimeIndex(self.base_offset, times)

    def clear_indexes(self) -> None:
        """Begin with empty indexes. Existing index files are truncated when the indexes are saved."""
        self._index, self._times = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self.index_entries = 0
        self.since_entry_bytes = 0

    def save_indexes(self, *, make: bool = False) -> None:
        """Write the entries that are only in memory. `make` also creates empty files, because Kafka expects the
        files."""
        for index, suffix in ((self._index, INDEX), (self._times, TIME_INDEX)):
            missing = make and not self._disk.exists(self.path + suffix)
            if index is None:
                if missing:
                    self._disk.close(self._disk.open(self.path + suffix, create=True))
                continue
            if len(index.entries) > index.saved_bytes or missing:
                self._save(index, suffix)
        self.aborted.save()

    def _save(self, index: OffsetIndex | TimeIndex, suffix: str) -> None:
        handle = self._disk.open(self.path + suffix, create=True)
        size_bytes = len(index.entries)
        try:
            is_rewritten = index.saved_bytes == 0
            if size_bytes > index.saved_bytes:
                self._disk.pwritev(handle, [bytes(index.entries[index.saved_bytes :])], index.saved_bytes)
            if is_rewritten and self._disk.size(handle) > size_bytes:  # rarely: a truncation may wait for the journal
                self._disk.truncate(handle, size_bytes)
            index.note_saved(size_bytes)
        finally:
            self._disk.close(handle)

    def rewrite_indexes(self) -> None:
        """Make the files contain exactly the entries in memory, after a rebuild or a truncation."""
        for index, suffix in ((self._index, INDEX), (self._times, TIME_INDEX)):
            assert index is not None, "changed indexes are in memory"
            if not index.entries and not self._disk.exists(self.path + suffix):
                continue
            index.note_saved(0)
            self._save(index, suffix)

    # writing

    def add(self, batch: Batch, settings: LogSettings) -> None:
        """Count a batch with assigned offsets that is appended to the segment. Raises OSError."""
        position, size = self.size_bytes, batch.size_bytes
        if batch.max_timestamp > self.max_timestamp:
            self.max_timestamp = batch.max_timestamp
            self.max_timestamp_offset = batch.base_offset + batch.last_offset_delta
        if position == 0:
            self.first_timestamp = batch.max_timestamp
        if self.since_entry_bytes > settings.index_interval_bytes:
            self._add_entry(batch.last_offset, position, settings.segment_index_bytes)
        self.size_bytes = position + size
        self.since_entry_bytes += size

    def _add_entry(self, last_offset: int, position: int, limit_bytes: int) -> None:
        """Add an index entry. If no file descriptor is free, a later batch will have the entry instead, so that
        searches have to read more."""
        try:
            index, times = self.index(), self.times()
            index.add(last_offset, position)
            times.add(self.max_timestamp, self.max_timestamp_offset)
            self.index_entries += 1
            self.since_entry_bytes = 0
            most = min(_SAVE_ENTRIES, limit_bytes // (_SAVES * TimeIndex.entry_bytes)) * OffsetIndex.entry_bytes
            if len(index.entries) - index.saved_bytes > most and not self._disk.device(self.path).is_slow:
                self.save_indexes()
        except OSError as error:
            if not is_short(error):
                raise

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append all queued bytes to the file, which is open. Raises OSError."""
        self.used = True
        self._disk.pwritev(self._handle, buffers, self.written_bytes)
        self.written_bytes = self.size_bytes

    def wrote(self, size_bytes: int) -> None:
        """Count queued bytes that a thread has appended to the file."""
        self.written_bytes += size_bytes

    def drop_unwritten(self) -> None:
        """Truncate bytes that a failed write has left. Raises OSError."""
        self._disk.truncate(self.handle(), self.written_bytes)

    def jitter_roll(self, jitter_ms: int) -> None:
        """Roll the segment this much earlier than segment.ms requires (segment.jitter.ms)."""
        self.roll_jitter_ms = jitter_ms

    def needs_roll(self, batch: Batch, last_offset: int, settings: LogSettings, now_ms: int) -> bool:
        """Whether a batch that will end at `last_offset` belongs in a new segment. Raises OSError."""
        size = self.size_bytes
        if not size:
            return False
        first = self.first_timestamp
        if first is None:
            first = self.began_ms()
        waited_ms = (batch.max_timestamp - first if first >= 0 else now_ms - self.created_ms) + self.roll_jitter_ms
        return (
            size + batch.size_bytes > settings.segment_bytes
            or waited_ms > settings.segment_ms
            or (waited_ms > settings.max_compaction_lag_ms and settings.compacted)  # to be cleaned, it must be full
            or last_offset - self.base_offset > MAX_RELATIVE_OFFSET
            or (self.index_entries + 1) * TimeIndex.entry_bytes >= settings.segment_index_bytes
        )

    def began_ms(self) -> int:
        """The maximum timestamp of the first batch; -1 if it has none. Raises OSError."""
        if self.first_timestamp is None:
            header = self._disk.pread(self.handle(), HEADER_BYTES, 0) if self.written_bytes else b""
            self.first_timestamp = Batch(memoryview(header)).max_timestamp if len(header) == HEADER_BYTES else -1
        return self.first_timestamp

    def seal(self) -> None:
        """Finish the segment: add the largest timestamp to the time index, and save both indexes."""
        if self.max_timestamp >= 0:
            self.times().add(self.max_timestamp, self.max_timestamp_offset)
        self.save_indexes(make=True)

    def largest_timestamp(self) -> int:
        """The largest timestamp, from the time index if the segment has not been read; -1 if there is none."""
        if self.max_timestamp < 0 and self.size_bytes:
            last = self.times().last()
            if last is not None:
                self.max_timestamp, self.max_timestamp_offset = last
        return self.max_timestamp

    def cut(self, position: int, next_offset: int) -> None:
        """Truncate the segment at `position`. `next_offset` is the offset at that position. Raises OSError."""
        handle = self.handle()
        self.index().cut(position)
        self.times().cut(next_offset)
        self.aborted.cut(next_offset)
        self._disk.truncate(handle, position)
        self.size_bytes = self.written_bytes = position
        self.unsure_bytes = min(self.unsure_bytes, position)
        self.walked = self.walked[0], min(self.walked[1], position)
        self.index_entries = len(self.index())
        self.max_timestamp = self.max_timestamp_offset = -1
        if position == 0:
            self.first_timestamp = None
        self.rewrite_indexes()
        self.recount()

    def begin_scan(self) -> None:
        """Reset all counts and indexes, before `add` is called for each batch in the file."""
        self.size_bytes = self.written_bytes = self.unsure_bytes = 0
        self.max_timestamp = self.max_timestamp_offset = -1
        self.clear_indexes()

    def end_scan(self, file_bytes: int) -> None:
        """Truncate the file after the added batches, which are valid, and write the indexes. Raises OSError."""
        self.written_bytes = self.size_bytes
        if self.size_bytes < file_bytes:
            self._disk.truncate(self.handle(), self.size_bytes)
        self.rewrite_indexes()

    def count_entries(self, position: int) -> None:
        """Count the index entries, and the bytes after the last entry, which is at `position`."""
        self.since_entry_bytes = self.size_bytes - position
        self.index_entries = len(self.index())

    def note_cleaned_batch(self, batch: Batch) -> None:
        """Count the timestamps of a batch that compaction writes to a new segment."""
        if batch.max_timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = batch.max_timestamp, batch.last_offset
        if self.first_timestamp is None:
            self.first_timestamp = batch.max_timestamp

    def end_cleaned(self, size_bytes: int, index_entries: int, since_entry_bytes: int) -> None:
        """Set the sizes of a new segment that compaction has written completely."""
        self.size_bytes = self.written_bytes = size_bytes
        self.index_entries, self.since_entry_bytes = index_entries, since_entry_bytes

    def recount(self) -> None:
        """Recompute max_timestamp and the bytes since the last index entry, from the indexes and later batches."""
        last = self.index().last()
        position = last[1] if last else 0
        self.count_entries(position)
        self.largest_timestamp()
        walk = self.walk(position)
        for _, _, next_offset, _ in walk:
            batch = walk.header()
            if batch.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = batch.max_timestamp, next_offset - 1

    # reading

    def is_walked(self, begin: int, end: int) -> bool:
        """Whether the headers from `begin` to `end` have been checked already."""
        return begin >= self.unsure_bytes or (self.walked[0] <= begin and min(end, self.unsure_bytes) <= self.walked[1])

    def note_walked(self, begin: int, end: int) -> None:
        """Store that the bytes from `begin` to `end` are whole batches according to their headers."""
        first, last = self.walked
        if first <= begin <= last or begin <= first <= end:
            begin, end = min(first, begin), max(last, end)
        self.walked = begin, end
        if begin == 0 and end >= self.unsure_bytes:
            self.unsure_bytes = 0

    def locate(self, offset: int) -> tuple[int, int, int] | None:
        """Position, base offset and next offset of the batch that contains `offset`, or of the first batch after it.

        None if every batch ends before `offset`. May wait for the disk.
        """
        position = self.index().position_for(offset)
        for at, base_offset, next_offset, _ in self.walk(position):
            if next_offset > offset:
                return at, base_offset, next_offset
        return None

    def end_by_walk(self) -> int:
        """The offset after the last written batch, found by reading headers. May wait for the disk."""
        end = self.base_offset
        last = self.index().last()
        for _, _, next_offset, _ in self.walk(last[1] if last else 0):
            end = next_offset
        return end

    def walk(self, position: int = 0, chunk_bytes: int = 1 << 16) -> BatchHeaders:
        """Yield position, base offset, next offset and size in bytes of each written batch from `position` on."""
        return BatchHeaders(self.read, self._written_bytes, position, chunk_bytes)

    def _written_bytes(self) -> int:
        return self.written_bytes

    def read(self, size: int, position: int) -> bytes:
        """Read bytes of the file. May wait for the disk. Raises OSError."""
        return self._disk.pread(self.handle(), size, position)

    def give_back(self, found: Buffer) -> None:
        """Let a later read reuse the memory of a `read_at_once`."""
        self._disk.give_back(found)

    def batch_at(self, position: int, size_bytes: int) -> Batch:
        """Read a whole batch. May wait for the disk."""
        return Batch(memoryview(self.read(size_bytes, position)))
