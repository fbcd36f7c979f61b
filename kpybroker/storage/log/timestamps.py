"""Looks up offsets by timestamp (ListOffsets): batches are searched from a position that the time index shows.

The work is done in slices, because a batch may have any number of records, and a segment any number of batches. Batches
that are not in the page cache are read on the disk's thread. Reading indexes and headers may wait for the disk.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kpybroker.errors import Damage
from kpybroker.storage.files.segment import LOG, Segment, SegmentGone
from kpybroker.storage.files.segments import Segments
from kpybroker.storage.log.reencoding import PLAIN_LIMIT_BYTES, plain_pieces
from kpybroker.storage.log.slices import Work
from kpybroker.wire.records.batch import HEADER_BYTES, Batch
from kpybroker.wire.records.record_scan import walk_through
from kpybroker.wire.records.record_search import TimeWalk

Found = tuple[int, int, int]
"""The offset, timestamp and leader epoch of a record."""
HEADERS_A_SLICE = 500
"""How many batch headers are examined before other requests are served."""


def first_at_or_after(segments: Segments, timestamp: int, start: int) -> Work[Found | None]:
    """The first record at or after offset `start` with a timestamp of at least `timestamp`.

    Raises OSError, KafkaError, Damage.
    """
    segment: Segment | None = segments.holding(start)
    while segment is not None:
        try:
            found = yield from _first_in(segment, timestamp, start)
        except SegmentGone:  # deleted or cleaned since the last slice: continue with the segment in its place
            segment = _in_place_of(segments, segment)
            continue
        if found is not None:
            return found
        segment = segments.after(segment)
    return None


def _in_place_of(segments: Segments, gone: Segment) -> Segment | None:
    there = segments.holding(gone.base_offset)
    return there if there is not gone else segments.after(gone)


def _first_in(segment: Segment, timestamp: int, start: int) -> Work[Found | None]:
    if segment.largest_timestamp() < timestamp or not segment.written_bytes:
        return None
    offset = max(segment.times().offset_before(timestamp), start)
    walk = segment.walk(segment.index().position_for(offset))
    for number, (at, _, next_offset, size) in enumerate(walk):
        if number % HEADERS_A_SLICE == HEADERS_A_SLICE - 1:
            yield None
        if next_offset <= start or walk.header().max_timestamp < timestamp:
            continue
        batch = yield from _batch_at(segment, at, size)
        found = yield from _record_in(batch, timestamp, start)
        if found is not None:
            return found
    return None


def _record_in(batch: Batch, timestamp: int | None, start: int) -> Work[Found | None]:
    """The first record in a batch with a timestamp of at least `timestamp`, or the newest record if it is None."""
    epoch, is_whole = batch.leader_epoch, batch.record_count > batch.last_offset_delta
    if batch.log_append_time and batch.base_offset >= start and is_whole:
        return batch.base_offset, batch.max_timestamp, epoch
    wanted = timestamp
    if wanted is not None:
        wanted = -(1 << 64) if batch.log_append_time else wanted - batch.base_timestamp
    looking = TimeWalk(start - batch.base_offset, wanted)
    yield from walk_through(looking, plain_pieces(batch, PLAIN_LIMIT_BYTES), batch.record_count)
    if looking.found is None:
        return None
    offset, delta = looking.found
    time = batch.max_timestamp if batch.log_append_time else batch.base_timestamp + delta
    return batch.base_offset + offset, time, epoch


def newest(segments: Segments, start: int) -> Work[Found | None]:
    """The first record with the largest timestamp, at or after offset `start`. Raises OSError, KafkaError, Damage."""
    largest, holder = -1, None
    for segment in list(segments)[segments.number_for(start) :]:
        if segment.written_bytes and segment.largest_timestamp() > largest:
            largest, holder = segment.max_timestamp, segment
    if holder is None:
        return None
    if holder.max_timestamp_offset >= start:
        located = holder.locate(holder.max_timestamp_offset)
        if located is not None:
            position, base_offset, _ = located
            batch = yield from _batch_at(holder, position, _size_at(holder, position))
            if batch.max_timestamp == largest and base_offset >= start:
                found = yield from _record_in(batch, largest, start)
                if found is not None:
                    return found
    return (yield from _newest_by_walking(segments, start))


def _size_at(segment: Segment, position: int) -> int:
    return next(segment.walk(position))[3]


def _newest_by_walking(segments: Segments, start: int) -> Work[Found | None]:
    """Find the newest record by scanning, because the record in the indexes was deleted, was cleaned or is not written
    yet."""
    best: Found | None = None
    segment: Segment | None = segments.holding(start)
    while segment is not None:
        try:
            walk = segment.walk()
            for number, (at, _, next_offset, size) in enumerate(walk):
                if number % HEADERS_A_SLICE == HEADERS_A_SLICE - 1:
                    yield None
                if next_offset <= start or walk.header().max_timestamp <= (best[1] if best else -1):
                    continue
                batch = yield from _batch_at(segment, at, size)
                found = yield from _record_in(batch, None, start)
                if found is not None and (best is None or found[1] > best[1]):
                    best = found
        except SegmentGone:
            segment = _in_place_of(segments, segment)
            continue
        segment = segments.after(segment)
    return best


def _batch_at(segment: Segment, position: int, size_bytes: int) -> Work[Batch]:
    """Read a whole batch, on the disk's thread if the read would wait. Raises OSError, Damage, SegmentGone."""
    segment.hold()
    try:
        found: Any = segment.read_at_once(size_bytes, position)
        if found is None or len(found) < size_bytes:
            found = yield partial(segment.read, size_bytes, position)
    finally:
        segment.let_go()
    if len(found) < HEADER_BYTES:
        raise Damage(f"{segment.path}{LOG} ends before position {position + size_bytes}")
    return Batch(memoryview(found))
