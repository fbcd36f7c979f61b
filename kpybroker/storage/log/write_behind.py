"""Writes batches of a log on a thread while the device is slow."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from kpybroker.config import LogSettings
from kpybroker.errors import Damage
from kpybroker.storage.files.index import TimeIndex
from kpybroker.storage.files.segment import MAX_RELATIVE_OFFSET, Segment
from kpybroker.storage.log.log_files import LogFiles
from kpybroker.wire.records.batch import Batch
from kpybroker.world import PendingWrite

WRITE_BYTES = 4 << 20
"""The maximum size of one write on a thread, unless a batch is larger. Short writes show that a slow disk makes
progress."""
POSITION_MAX = 0x7FFFFFFF
GROWN_BYTES = 64 << 20
"""How much larger than segment.bytes a segment may become while its device is slow."""
GROWN_INDEX_BYTES = 1 << 20
"""How much larger than segment.index.bytes the time index, which is in memory, may become in that case."""


def may_grow(segment: Segment, batch: Batch, last_offset: int, settings: LogSettings) -> bool:
    """Whether the batch can be appended without rolling, although the segment then slightly exceeds its limits."""
    return (
        segment.size_bytes + batch.size_bytes <= min(settings.segment_bytes + GROWN_BYTES, POSITION_MAX)
        and last_offset - segment.base_offset <= MAX_RELATIVE_OFFSET
        and (segment.index_entries + 1) * TimeIndex.entry_bytes < settings.segment_index_bytes + GROWN_INDEX_BYTES
    )


class UnderWay(NamedTuple):
    """A write in progress on a thread: `size_bytes` of a segment, up to offset `end`. `work` is the number that the
    device has given to it."""

    write: PendingWrite
    work: int
    segment: Segment
    size_bytes: int
    end: int


class WriteBehind:
    """The writes of one log on a thread. Copies of flushed batches are written in order, one write at a time.

    When everything is written or the log is offline, `on_end` is called, and this object is no longer used.
    """

    __slots__ = ("_chunks", "_ended", "_files", "_on_end", "_on_written", "_under_way")

    def __init__(self, files: LogFiles, on_written: Callable[[], None], on_end: Callable[[], None]) -> None:
        """`on_written` is called after each write for which no caller waits. If the write failed, the log is
        offline."""
        self._files = files
        self._on_written = on_written
        self._on_end = on_end
        self._chunks: deque[tuple[bytes, int]] = deque()
        self._under_way: UnderWay | None = None
        self._ended: asyncio.Future[None] | None = None

    def add(self, data: bytes, end: int, *, waits: bool) -> None:
        """Queue a write of batches up to `end`. With `waits`, the caller will call `wait` for the result. Raises
        Damage."""
        self._chunks.append((data, end))
        self._files.device.queue(len(data))
        if self._under_way is None:
            self._begin(waits=waits)

    def _begin(self, *, waits: bool) -> None:
        files, segment = self._files, self._files.segments.active
        taken, size_bytes, end = list[bytes](), 0, 0
        while self._chunks and (not taken or size_bytes + len(self._chunks[0][0]) <= WRITE_BYTES):
            chunk, end = self._chunks.popleft()
            taken.append(chunk)
            size_bytes += len(chunk)
        data = b"".join(taken)
        try:
            handle = segment.hold()
        except OSError as error:
            files.device.unqueue(len(data))
            self._finish()
            raise files.fail(error) from error
        if not segment.written_bytes:
            files.note_new_names()
        write = files.world.disk.write_soon(handle, data, segment.written_bytes)
        self._under_way = UnderWay(write, files.device.begin(files.world.steady_ms()), segment, size_bytes, end)
        if not waits:
            write.when_done(partial(self._written, write))

    def _written(self, write: PendingWrite) -> None:
        if self._under_way is not None and self._under_way.write is write:
            with contextlib.suppress(Damage):  # the error has been logged, and the log is offline
                self._go_on(waits=False)
        self._on_written()  # even if `wait` has processed the result, because other callers may be waiting

    def _go_on(self, *, waits: bool) -> None:
        """Process the result of the write in progress, and begin the next one. Raises Damage."""
        files = self._files
        assert self._under_way is not None, "a write is in progress"
        (write, work, segment, size_bytes, end), self._under_way = self._under_way, None
        files.device.unqueue(size_bytes)
        try:
            write.result()
        except OSError as error:
            self._finish()
            raise files.fail_write(segment, error) from error
        finally:
            files.device.end(work, files.world.steady_ms())
            segment.let_go()
        if files.offline is not None:
            self._finish()
            return
        files.wrote(segment, size_bytes, end)
        if self._chunks:
            self._begin(waits=waits)
        else:
            self._finish()

    def _finish(self) -> None:
        self._files.device.unqueue(sum(len(chunk) for chunk, _ in self._chunks))
        self._chunks.clear()
        self._on_end()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def wait(self) -> None:
        """Block until everything is written. Raises Damage."""
        while self._under_way is not None:
            self._go_on(waits=True)

    async def ended(self) -> None:
        """Return when there is nothing left to write."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._ended)
