"""Checks the indexes of a segment against its batches, to find records that a search would miss."""

from __future__ import annotations

from bisect import bisect_right

from kpybroker.errors import KafkaError
from kpybroker.storage.files.index import OFFSET_ENTRY, TIME_ENTRY
from kpybroker.storage.repair.examining import Examined, Sound
from kpybroker.wire.records.batch import Batch, read_records

ABORT = 0
"""The type of an abort marker in its key."""

Wrong = tuple[int, str] | None
"""The position of an error in the file, and its description; None if there is no error."""


def check_offsets(content: bytes, base: int, batches: list[Sound], is_last: bool) -> Wrong:
    """Check an offset index: each entry must have the position of a batch, and all earlier batches must have smaller
    offsets than the entry."""
    positions = {sound.position: number for number, sound in enumerate(batches)}
    before = (-1, -1)
    content, rest = _entries(content, OFFSET_ENTRY.size, is_last)
    for at in range(0, len(content), OFFSET_ENTRY.size):
        relative, position = OFFSET_ENTRY.unpack_from(content, at)
        offset = base + relative
        number = positions.get(position)
        if number is None:
            return at, f"an entry names position {position}, where no batch begins"
        if offset < batches[number].batch.base_offset or (offset, position) <= before or relative < 0:
            return at, f"an entry says that offset {offset} is at position {position}, but is wrong or out of order"
        if offset >= batches[-1].batch.next_offset:
            return at, f"an entry names offset {offset}, but the segment ends before that offset"
        before = offset, position
    return (len(content), f"{rest} bytes at the end are not an entry") if rest else None


def check_times(content: bytes, base: int, batches: list[Sound], is_last: bool) -> Wrong:
    """Check a time index: each entry must have the largest timestamp of all batches up to its offset, and the last
    entry of a full segment must have the largest timestamp of the segment."""
    ends = [sound.batch.base_offset for sound in batches]
    largest: list[int] = []
    for sound in batches:
        largest.append(max(sound.batch.max_timestamp, largest[-1] if largest else -1))
    content, rest = _entries(content, TIME_ENTRY.size, is_last)
    before = (-1, -1)
    for at in range(0, len(content), TIME_ENTRY.size):
        timestamp, relative = TIME_ENTRY.unpack_from(content, at)
        number = bisect_right(ends, base + relative) - 1
        if number < 0 or relative < 0 or (timestamp, relative) <= before or largest[number] != timestamp:
            said = f"an entry says that {timestamp} is the largest timestamp up to offset {base + relative}"
            return at, f"{said}, but is wrong or out of order"
        if base + relative >= batches[-1].batch.next_offset:
            return at, f"an entry names offset {base + relative}, but the segment ends before that offset"
        before = timestamp, relative
    if largest and not is_last and largest[-1] >= 0 and before[0] != largest[-1]:
        return len(content), f"lacks the segment's largest timestamp, {largest[-1]}"
    return (len(content), f"{rest} bytes at the end are not an entry") if rest else None


def _entries(content: bytes, size: int, is_last: bool) -> tuple[bytes, int]:
    """The entries, and the number of bytes after them that are not an entry. Zeros that Kafka preallocates for the last
    segment are ignored."""
    end = len(content)
    if is_last:
        while end >= size and not any(content[end - size : end]):
            end -= size
    return content[: end - end % size], end % size


def check_transactions(examined: Examined, open_: dict[int, int]) -> list[tuple[int, int, int]]:
    """The transactions that are aborted in a segment: producer id, first offset (-1 if unknown), and offset of the
    marker.

    `open_` contains the first offset of each producer's open transaction, and is updated from segment to segment.
    """
    aborted = []
    for sound in examined.batches:
        batch = sound.batch
        if not batch.is_transactional or batch.producer_id < 0:
            continue
        if not batch.is_control:
            open_.setdefault(batch.producer_id, batch.base_offset)
            continue
        first = open_.pop(batch.producer_id, None)
        if _is_abort(batch):
            aborted.append((batch.producer_id, -1 if first is None else first, batch.base_offset))
    return aborted


def _is_abort(batch: Batch) -> bool:
    try:
        key = next(iter(read_records(batch))).key or b""
    except (KafkaError, StopIteration):
        return False
    return int.from_bytes(key[2:4]) == ABORT
