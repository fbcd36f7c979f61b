"""The half of a log that writes what was appended: at once, or by a thread where the device is slow."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from kpybroker.config import LogSettings
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.storage.files.index import TimeIndex
from kpybroker.storage.files.segment import LOG, MAX_RELATIVE_OFFSET, Segment
from kpybroker.storage.log.syncing import GroupSync
from kpybroker.storage.log.watermarks import Marks
from kpybroker.wire.records.batch import Batch, base_offset_of
from kpybroker.world import Buffer, PendingWrite, World
from kpybroker.world.devices import Device

log = logging.getLogger(__name__)

_JOINED_BYTES = 64 * 1024
"""Queued batches up to this size are joined before they are written: cheaper than many small buffers."""
WRITTEN_AT_ONCE_BYTES = 8 << 20
"""The loop writes so much in one go, up to 15 ms of copying into the page cache; a thread writes more."""
WRITE_BYTES = 4 << 20
"""A thread takes so much for one write, or one batch: that it makes progress shows before a disk is given up."""
POSITION_MAX = 0x7FFFFFFF
GROWN_BYTES = 64 << 20
"""A segment may be so much larger than segment.bytes while its device is slow."""
GROWN_INDEX_BYTES = 1 << 20
"""Its time index may be so much larger than segment.index.bytes meanwhile; the entries are in memory."""


def may_grow(segment: Segment, batch: Batch, last_offset: int, settings: LogSettings) -> bool:
    """Whether the batch can do without a new segment, for a while: a little above the limits of size, and later."""
    return (
        segment.size_bytes + batch.size_bytes <= min(settings.segment_bytes + GROWN_BYTES, POSITION_MAX)
        and last_offset - segment.base_offset <= MAX_RELATIVE_OFFSET
        and (segment.index_entries + 1) * TimeIndex.entry_bytes < settings.segment_index_bytes + GROWN_INDEX_BYTES
    )


class WriteSide(Marks):
    """The queue of a log, and what becomes of it."""

    __slots__ = ("_on_written", "_queue", "behind", "changed", "device", "written_end")

    world: World
    syncing: GroupSync

    def begin_writing(self, device: Device, end: int) -> None:
        """Nothing is queued, and everything below `end` is in the files."""
        self.device = device
        self.written_end = end
        self.changed = False
        """Written to or cut since it was opened: a stop has something to do."""
        self.behind: WriteBehind | None = None
        """What a thread writes; None where nothing is under way."""
        self._on_written: Callable[[], None] = _nobody_waits
        self._queue: list[Buffer] = []

    def require_room(self) -> None:
        """Before an append that a thread will write. Raises REQUEST_TIMED_OUT."""
        if self.device.is_full:
            waiting = self.device.queued_bytes
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{self.device.path}: {waiting} bytes wait to be written")

    def flush(self, *, wait: bool = True) -> None:
        """Write all that is queued, in one call. Raises Damage: the log is offline. KafkaError: not yet, for want of
        descriptors; it stays queued.

        Without `wait` a slow device, or what takes long to copy, is left to a thread: `written_end` moves when it has
        written.
        """
        queue = self._queue
        if self.behind is not None or self.device.is_slow:
            self._flush_behind(wait=wait)
            return
        if not queue:
            return
        if self.offline is not None:
            queue.clear()
            raise Damage(self.offline)
        segment = self.segments.active
        position = segment.written_bytes
        queued_bytes = segment.size_bytes - position
        if queued_bytes > WRITTEN_AT_ONCE_BYTES and not wait and not self.device.is_full:
            self._flush_behind(wait=False)
            return
        handle = self._handle(segment)
        if len(queue) > 1 and queued_bytes <= _JOINED_BYTES:
            queue = [b"".join(queue)]
        try:
            if not position:
                self.syncing.directory_changed = True
            self.world.disk.pwritev(handle, queue, position)
        except OSError as error:
            raise self.fail_write(segment, error) from error
        self._queue.clear()
        segment.written_bytes = segment.size_bytes
        self.written_end = self.end
        self.changed = True

    def _handle(self, segment: Segment) -> int:
        """The file to write to. Raises Damage, KafkaError."""
        try:
            return segment.handle()
        except OSError as error:
            self._queue[:] = [b"".join(self._queue)]  # the views are of buffers that are used again
            raise self.unchanged(error) from error

    def _flush_behind(self, *, wait: bool) -> None:
        queue = self._queue
        if queue:
            self._handle(self.segments.active)
            chunks = list(_chunks(queue, self.end))
            queue.clear()
            if self.offline is not None:
                raise Damage(self.offline)
            behind = self.behind = self.behind or WriteBehind(self)
            for data, end in chunks:
                behind.add(data, end, waits=wait)
        if wait and self.behind is not None:
            self.behind.wait()

    def wrote(self, segment: Segment, size_bytes: int, end: int) -> None:
        """A thread has written: so many bytes more of the segment are in its file: everything below `end`."""
        segment.written_bytes += size_bytes
        self.written_end = end
        self.changed = True

    def tell(self, on_written: Callable[[], None]) -> None:
        """Call back when a write of a thread has ended; the log is offline where it has failed."""
        self._on_written = on_written

    def write_ended(self) -> None:
        """A thread has written what it was given, or has failed to."""
        self._on_written()

    def caught_up(self) -> None:
        """No thread writes for this log any more."""
        self.behind = None

    async def until_written(self) -> None:
        """Until no thread writes for this log: everything flushed is written, or the log is offline."""
        while self.behind is not None:
            await self.behind.ended()

    def fail_write(self, segment: Segment, error: OSError) -> Damage:
        """Take the log offline after a write that failed; what it left is cut off."""
        damage = self.fail(error)
        try:
            self.world.disk.truncate(segment.handle(), segment.written_bytes)
        except OSError:
            log.warning("%s%s may end in a torn batch; recovery cuts it", segment.path, LOG)
        return damage


def _chunks(queue: list[Buffer], end: int) -> Iterator[tuple[bytes, int]]:
    """Copies of the queued bytes, each at most WRITE_BYTES or one batch, and the offset that each ends at: the views
    are of buffers that are used again."""
    taken, size_bytes = list[Buffer](), 0
    for view in queue:
        if taken and size_bytes + len(view) > WRITE_BYTES:
            yield b"".join(taken), base_offset_of(view)
            taken, size_bytes = [], 0
        taken.append(view)
        size_bytes += len(view)
    yield b"".join(taken), end


def _nobody_waits() -> None:
    """Of a log that is no partition's yet."""


class UnderWay(NamedTuple):
    """What a thread writes: where to, how many bytes, up to which offset; and the device's number for it."""

    write: PendingWrite
    work: int
    segment: Segment
    size_bytes: int
    end: int


class WriteBehind:
    """What a thread writes of one log: copies of what was flushed, in order, one write at a time.

    It lives until all is written, or the log is offline.
    """

    __slots__ = ("_chunks", "_ended", "_log", "_under_way")

    def __init__(self, log: WriteSide) -> None:
        self._log = log
        self._chunks: deque[tuple[bytes, int]] = deque()
        self._under_way: UnderWay | None = None
        self._ended: asyncio.Future[None] | None = None

    def add(self, data: bytes, end: int, *, waits: bool) -> None:
        """Write this too: everything below `end`; with `waits` the caller takes the end of it. Raises Damage."""
        self._chunks.append((data, end))
        self._log.device.queued_bytes += len(data)
        if self._under_way is None:
            self._begin(waits=waits)

    def _begin(self, *, waits: bool) -> None:
        log, segment = self._log, self._log.segments.active
        taken, size_bytes, end = list[bytes](), 0, 0
        while self._chunks and (not taken or size_bytes + len(self._chunks[0][0]) <= WRITE_BYTES):
            chunk, end = self._chunks.popleft()
            taken.append(chunk)
            size_bytes += len(chunk)
        data = b"".join(taken)
        try:
            handle = segment.hold()
        except OSError as error:
            log.device.queued_bytes -= len(data)
            self._finish()
            raise log.fail(error) from error
        if not segment.written_bytes:
            log.syncing.directory_changed = True
        write = log.world.disk.write_soon(handle, data, segment.written_bytes)
        self._under_way = UnderWay(write, log.device.begin(log.world.steady_ms()), segment, size_bytes, end)
        if not waits:
            write.when_done(partial(self._written, write))

    def _written(self, write: PendingWrite) -> None:
        if self._under_way is not None and self._under_way.write is write:
            with contextlib.suppress(Damage):  # the log has logged it, and is offline
                self._go_on(waits=False)
        self._log.write_ended()  # also where `wait` took the end: its caller does not know who else waits

    def _go_on(self, *, waits: bool) -> None:
        """Take the end of the write under way, and begin the next. Raises Damage."""
        log = self._log
        assert self._under_way is not None, "a write is under way"
        (write, work, segment, size_bytes, end), self._under_way = self._under_way, None
        log.device.queued_bytes -= size_bytes
        try:
            write.result()
        except OSError as error:
            self._finish()
            raise log.fail_write(segment, error) from error
        finally:
            log.device.end(work, log.world.steady_ms())
            segment.let_go()
        if log.offline is not None:
            self._finish()
            return
        log.wrote(segment, size_bytes, end)
        if self._chunks:
            self._begin(waits=waits)
        else:
            self._finish()

    def _finish(self) -> None:
        self._log.device.queued_bytes -= sum(len(chunk) for chunk, _ in self._chunks)
        self._chunks.clear()
        self._log.caught_up()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def wait(self) -> None:
        """Hold the caller until all is written. Raises Damage."""
        while self._under_way is not None:
            self._go_on(waits=True)

    async def ended(self) -> None:
        """Until there is nothing to write any more."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._ended)
