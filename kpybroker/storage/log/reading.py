"""Reads whole batches from a log, from the page cache or, if the read has to wait for the disk, on another thread.

A read is a generator that yields its requests to the disk. Its caller sends it the bytes from the page cache, or gives
up and repeats the read on a thread. Consumers continue where they stopped, so the end positions of reads are cached.
"""

from __future__ import annotations

from collections.abc import Generator
from operator import itemgetter
from typing import Final, NamedTuple

from kpybroker.errors import Damage, ErrorCode
from kpybroker.storage.files.old_messages import old_message
from kpybroker.storage.files.segment import LOG, Segment, SegmentGone
from kpybroker.storage.files.segments import Segments
from kpybroker.storage.files.txn_index import AbortedTransaction
from kpybroker.wire.records.batch import HEADER_BYTES, MAGIC_AT, PREFIX_BYTES, WALKED
from kpybroker.world import Buffer, Disk

_PLACES_KEPT: Final = 64
_LOOK_AHEAD_BYTES: Final = 8192
"""How much more to read if the first batch has to be searched for, so that one read is usually enough."""


_GROWING: Final = 1 << 62
"""The end offset that is assumed for a log that may grow during the read."""


class Ask(NamedTuple):
    """The next request of a read: bytes of a segment or, if the size is 0, the loading of its indexes into memory."""

    segment: Segment
    size: int
    position: int


Plan = Generator[Ask, Buffer, Buffer]


class Reader:
    """Reads the segments of one log. The log has already checked the offsets."""

    __slots__ = ("_changes", "_disk", "_places", "_segments")

    def __init__(self, disk: Disk, segments: Segments) -> None:
        self._disk = disk
        self._segments = segments
        self._places: dict[int, tuple[Segment, int]] = {}
        self._changes = 0

    def forget(self) -> None:
        """Clear the cached positions, because segments were deleted or truncated."""
        self._places.clear()
        self._changes += 1

    def _keep(self, offset: int, segment: Segment, position: int) -> None:
        places = self._places
        places[offset] = (segment, position)
        if len(places) > _PLACES_KEPT:
            del places[next(iter(places))]

    def read(self, offset: int, max_bytes: int, upper: int, written_end: int, *, min_one: bool) -> Buffer | None:
        """Read whole batches below `upper`, beginning with the batch that contains `offset`. The result is None if the
        read would wait for the disk.

        Raises Damage if the bytes there are not a batch.
        """
        place = self._places.get(offset)
        if place is not None and offset < upper:
            segment, position = place
            left = segment.written_bytes - position
            if left > 0 and position >= segment.unsure_bytes:
                size = left if left < max_bytes else max_bytes
                found = self._disk.pread_nowait(segment.handle(), size, position)
                if found is None or len(found) < size:
                    return None
                if size == left and upper == written_end and segment is self._segments.active:
                    self._keep(written_end, segment, position + left)
                    return found
                if size >= WALKED.size:
                    base_offset, length, last_delta = WALKED.unpack_from(found)
                    if length + PREFIX_BYTES == size and base_offset + last_delta < upper:
                        self._keep(base_offset + last_delta + 1, segment, position + size)
                        return found
                    if 0 < length + PREFIX_BYTES <= size:
                        return self._cut(segment, position, found, 0, size, upper, written_end)
        plan = self._plan(offset, max_bytes, upper, written_end, min_one=min_one)
        try:
            ask = next(plan)
            while True:
                segment = ask.segment
                if not ask.size:
                    if not segment.has_indexes and segment is not self._segments.active:
                        return None
                    segment.index()
                    ask = plan.send(b"")
                    continue
                chunk = self._disk.pread_nowait(segment.handle(), ask.size, ask.position)
                if chunk is None or len(chunk) < ask.size:
                    return None
                ask = plan.send(chunk)
        except StopIteration as done:
            result: Buffer = done.value
            return result

    def bytes_up_to(self, offset: int, last: int) -> int | None:
        """The size of the batches from the one with `offset` to the one with `last`, or more, within one segment. None
        if the segment's index has to be loaded first. May raise OSError."""
        segment = self._segments.holding(offset)
        if not segment.has_indexes and segment is not self._segments.active:
            return None
        index = segment.index()
        end = index.end_for(last)
        return (segment.written_bytes if end is None else end) - index.position_for(offset)

    async def load_index(self, offset: int) -> None:
        """Load the index of the segment with this offset on a thread. Raises OSError."""
        segment = self._segments.holding(offset)
        if not segment.has_indexes:
            await segment.load_indexes_cold()

    async def read_cold(self, offset: int, max_bytes: int, upper: int, *, min_one: bool) -> Buffer:
        """Like `read`, but wait for the disk on a thread. Raises Damage, or SegmentGone if the caller has to try again.

        The log may grow in the meantime, so the result ends at `upper` rather than at the end of the file.
        """
        plan = self._plan(offset, max_bytes, upper, _GROWING, min_one=min_one)
        try:
            ask = next(plan)
            while True:
                if ask.size:
                    handle = ask.segment.hold()
                    try:
                        chunk: Buffer = await self._disk.cold_read(handle, ask.size, ask.position)
                    finally:
                        ask.segment.let_go()
                else:
                    await ask.segment.load_indexes_cold()
                    chunk = b""
                if ask.segment.deleted:
                    # the bytes may be from the segment that replaced it, which may have another batch at this position
                    raise SegmentGone(ErrorCode.OFFSET_OUT_OF_RANGE, "the segment has been deleted")
                ask = plan.send(chunk)
        except StopIteration as done:
            result: Buffer = done.value
            return result

    def _plan(self, offset: int, max_bytes: int, upper: int, written_end: int, *, min_one: bool) -> Plan:
        if offset >= upper:
            return b""
        place = self._places.get(offset)
        segment, position = place if place is not None else (self._segments.holding(offset), -1)
        changes = self._changes
        while True:
            ahead = 0
            if position < 0 and offset <= segment.base_offset:
                position = 0  # without loading the index
            if position < 0:
                yield Ask(segment, 0, 0)
                position = segment.index().position_for(offset)
                ahead = _LOOK_AHEAD_BYTES
            left = segment.written_bytes - position
            if left > 0:
                chunk = yield Ask(segment, min(max(max_bytes, _LOOK_AHEAD_BYTES) + ahead, left), position)
                at, size = _first(chunk, offset)
                if size > 0:
                    break
                position += at
                if at and not size:
                    continue
                if changes == self._changes:  # otherwise the log was truncated during the read
                    raise _no_batch(segment, position, offset)
                return b""
            following = self._segments.after(segment)
            if following is None:
                return b""
            segment, position = following, 0
        if size > max_bytes and not min_one:
            return b""
        if at + size > len(chunk):
            position += at
            if position + size > segment.written_bytes:
                if changes == self._changes:
                    raise _no_batch(segment, position, offset)
                return b""
            chunk, at = (yield Ask(segment, size, position)), 0
        wanted = max(size, max_bytes)
        if not segment.is_walked(position + at, position + min(len(chunk), at + wanted)):
            following = self._segments.after(segment)
            end = written_end if following is None else following.base_offset
            reached, lacks = _walk(segment, position, chunk, at, min(len(chunk), at + wanted), upper, end)
            if lacks >= 0:
                if changes == self._changes:
                    raise _no_batch(segment, position + reached, max(lacks, offset))
                return b""
            segment.note_walked(position + at, position + reached)
            wanted = reached - at
        return self._cut(segment, position, chunk, at, wanted, upper, written_end)

    def _cut(
        self, segment: Segment, position: int, chunk: Buffer, at: int, max_bytes: int, upper: int, written_end: int
    ) -> memoryview:
        """The whole batches of a chunk from `at` on that are below `upper`, at most `max_bytes`."""
        whole = memoryview(chunk)
        limit = min(len(chunk), at + max_bytes)
        if position + limit == segment.written_bytes:
            following = self._segments.after(segment)
            segment_end = written_end if following is None else following.base_offset
            if upper >= segment_end:
                self._keep(segment_end, following or segment, 0 if following else segment.written_bytes)
                return whole[at:limit]
        end = at
        if limit - at > _LOOK_AHEAD_BYTES and segment.has_indexes:
            # begin the scan for the last whole batch at the last index entry within the chunk
            end = max(at, segment.index().floor(upper - 1, position + limit - PREFIX_BYTES) - position)
        next_offset = -1
        while end + WALKED.size <= limit:
            base_offset, length, last_delta = WALKED.unpack_from(chunk, end)
            size = length + PREFIX_BYTES
            if end + size > limit or base_offset + last_delta >= upper or length <= 0:
                if next_offset < 0 and end > at:
                    next_offset = base_offset  # the index entry was that of the first batch that does not fit
                break
            next_offset = base_offset + last_delta + 1
            end += size
        if next_offset >= 0:
            self._keep(next_offset, segment, position + end)
        return whole[at:end]


def _walk(
    segment: Segment, position: int, chunk: Buffer, at: int, limit: int, upper: int, segment_end: int
) -> tuple[int, int]:
    """Scan the headers of a chunk from `at` on, up to the last whole batch below `limit` and `upper`.

    Return the end of that batch, and -1. If the bytes after it are not a batch, return the offset of the missing batch
    instead of -1.
    """
    end = segment.base_offset
    while at < limit:
        if at + HEADER_BYTES > limit:
            return at, end if position + limit == segment.written_bytes else -1
        base_offset, length, last_delta = WALKED.unpack_from(chunk, at)
        size, next_offset = length + PREFIX_BYTES, base_offset + last_delta + 1
        is_sound = (
            size >= HEADER_BYTES and chunk[at + MAGIC_AT] == 2 and end <= base_offset < next_offset <= segment_end
        )
        if not is_sound or position + at + size > segment.written_bytes:
            return at, end
        if at + size > limit or next_offset > upper:
            break
        end = next_offset
        at += size
    return at, -1


def end_of(batches: Buffer) -> int:
    """The offset after the last of some whole batches; 0 if there are no batches."""
    at = end = 0
    while at + WALKED.size <= len(batches):
        base_offset, length, last_delta = WALKED.unpack_from(batches, at)
        if length <= 0:
            break
        end = base_offset + last_delta + 1
        at += length + PREFIX_BYTES
    return end


def aborted_within(segments: Segments, offset: int, records: Buffer) -> list[AbortedTransaction]:
    """The aborted transactions with records in `records`, which were read from `offset` on, by their first offset.

    May wait for the disk. Raises OSError, Damage.
    """
    found: list[AbortedTransaction] = []
    upper = -1
    for number in range(segments.number_for(offset), len(segments)):
        segment = segments[number]
        if len(segment.aborted):
            upper = upper if upper >= 0 else end_of(records)
            more, is_all = segment.aborted.within(offset, upper)
            found += more
            if is_all:
                break
    return sorted(found, key=itemgetter(1))


def _no_batch(segment: Segment, position: int, offset: int) -> Damage:
    return old_message(segment, position) or Damage(
        f"{segment.path}{LOG}: the bytes at position {position}, where the batch with offset {offset} or one before it "
        "should be, are not a batch; stop the broker, and see `kpybroker storage check` and `repair`"
    )


def _first(chunk: Buffer, offset: int) -> tuple[int, int]:
    """The position and size of the first batch that ends at or after `offset`.

    The size is 0 if the chunk does not contain that batch; the search then continues at the position, unless it is 0.
    The size is -1 if the bytes at the position are not a batch.
    """
    at = 0
    while at + WALKED.size <= len(chunk):
        base_offset, length, last_delta = WALKED.unpack_from(chunk, at)
        if length + PREFIX_BYTES < HEADER_BYTES or chunk[at + MAGIC_AT] != 2:
            return at, -1
        if base_offset + last_delta >= offset:
            return at, length + PREFIX_BYTES
        at += length + PREFIX_BYTES
    return at, 0
