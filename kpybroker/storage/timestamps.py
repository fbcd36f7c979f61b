"""Offsets by time (ListOffsets): the time index says where to begin, the batches the rest. May wait for the disk."""

from __future__ import annotations

from kpybroker.storage.segment import Segment
from kpybroker.storage.segments import Segments
from kpybroker.wire.batch import Batch, read_records

Found = tuple[int, int, int]
"""(offset, timestamp, leader epoch) of a record."""


def first_at_or_after(segments: Segments, timestamp: int, start: int) -> Found | None:
    """The first record from offset `start` on whose timestamp is at least `timestamp`. Raises OSError, KafkaError."""
    for number in range(segments.number_for(start), len(segments)):
        segment = segments[number]
        if segment.largest_timestamp() < timestamp or not segment.written_bytes:
            continue
        offset = max(segment.times().offset_before(timestamp), start)
        walk = segment.walk(segment.index().position_for(offset))
        for at, _, next_offset, size in walk:
            if next_offset <= start or walk.header().max_timestamp < timestamp:
                continue
            found = _first_record(segment.batch_at(at, size), timestamp, start)
            if found is not None:
                return found
    return None


def _first_record(batch: Batch, timestamp: int, start: int) -> Found | None:
    if batch.log_append_time and batch.base_offset >= start and batch.record_count > batch.last_offset_delta:
        return batch.base_offset, batch.max_timestamp, batch.leader_epoch
    for record in read_records(batch):
        if record.timestamp >= timestamp and record.offset >= start:
            return record.offset, record.timestamp, batch.leader_epoch
    return None


def newest(segments: Segments, start: int) -> Found | None:
    """The first record with the largest timestamp of all from offset `start` on. Raises OSError, KafkaError."""
    largest, holder = -1, None
    for number in range(segments.number_for(start), len(segments)):
        segment = segments[number]
        if segment.written_bytes and segment.largest_timestamp() > largest:
            largest, holder = segment.max_timestamp, segment
    if holder is None:
        return None
    if holder.max_timestamp_offset >= start:
        located = holder.locate(holder.max_timestamp_offset)
        if located is not None:
            position, base_offset, _ = located
            batch = holder.batch_at(position, _size_at(holder, position))
            if batch.max_timestamp == largest and base_offset >= start:
                return _first_record(batch, largest, start) or _newest_by_walking(segments, start)
    return _newest_by_walking(segments, start)


def _size_at(segment: Segment, position: int) -> int:
    return next(segment.walk(position))[3]


def _newest_by_walking(segments: Segments, start: int) -> Found | None:
    """Where the record that the indexes know was deleted or cleaned away, or is not written yet."""
    best: Found | None = None
    for number in range(segments.number_for(start), len(segments)):
        walk = segments[number].walk()
        for at, _, next_offset, size in walk:
            if next_offset <= start or walk.header().max_timestamp <= (best[1] if best else -1):
                continue
            for record in read_records(segments[number].batch_at(at, size)):
                if record.offset >= start and record.timestamp > (best[1] if best else -1):
                    best = record.offset, record.timestamp, walk.header().leader_epoch
    return best
