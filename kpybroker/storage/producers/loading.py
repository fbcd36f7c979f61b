"""Loads the producer state of a log that was opened or truncated, from a snapshot and the batches around it."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Final

from kpybroker.errors import Damage
from kpybroker.storage.files.checkpoint_files import read_file
from kpybroker.storage.files.segment import SNAPSHOT, Segment, file_name
from kpybroker.storage.files.segments import Segments
from kpybroker.storage.files.txn_index import AbortedTransaction
from kpybroker.storage.producers.producers import Producer, ProducerStates
from kpybroker.storage.producers.transactions import Ended
from kpybroker.wire.records.batch import HEADER_BYTES
from kpybroker.world import Disk

log = logging.getLogger(__name__)

SLICE_BATCHES: Final = 1000
"""The most batches that are read before other work may be done: about 5 ms."""
_RECALL_BYTES = 8 << 10
_RECALLED_ENTRIES = 128
"""How many index entries before a snapshot to read: at least 512 KiB of small batches, or this many large batches."""


def snapshot_offsets(disk: Disk, directory: str) -> list[int]:
    """The offsets of the producer snapshots in a directory, in ascending order."""
    stems = (name[: -len(SNAPSHOT)] for name in disk.list(directory) if name.endswith(SNAPSHOT))
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def loading_producers(
    disk: Disk, directory: str, segments: Segments, end: int, now_ms: int, expiration_ms: int, trusted: int
) -> Generator[None, None, ProducerStates]:
    """Load the producer state from the newest valid snapshot at or below `trusted`, and the batches around it. Yields
    where other work may be done. Raises OSError, Damage.

    As in Kafka's `ProducerStateManager.truncateAndReload`, snapshots below the first segment are ignored. Later batches
    may have been deleted, for example the marker of a transaction that is open in the snapshot, or later sequences of a
    producer. Other snapshots are deleted unless they are at the base offset of a segment, because a truncation may need
    those. Transaction indexes are rebuilt from offset `trusted` on, which is the base offset of a segment or the end of
    the log.
    """
    producers = ProducerStates()
    bases = frozenset(segment.base_offset for segment in segments)
    first = segments.first.base_offset
    for offset in reversed(snapshot_offsets(disk, directory)):
        path = f"{directory}/{file_name(offset, SNAPSHOT)}"
        if (producers.snapshot_offset >= 0 or trusted < offset <= end) and offset in bases:
            continue
        if first <= offset <= trusted and producers.snapshot_offset < 0:
            try:
                producers.load_snapshot(read_file(disk, path), offset, now_ms, expiration_ms)
                continue
            except Damage as damage:
                log.warning("%s: %s; producer state is read from the batches before it", path, damage)
        disk.unlink(path)
    if len(producers):
        _recall(producers, segments)
    anew = [segments[at] for at in range(segments.number_for(trusted), len(segments))] if trusted < end else []
    for segment in anew:
        segment.aborted.clear()
    yield from _replaying(producers, segments, end, trusted)
    _end_cleaned(producers, segments)
    for segment in anew:
        segment.aborted.save()
    producers.expire(now_ms, expiration_ms)
    return producers


def _recall(producers: ProducerStates, segments: Segments) -> None:
    """Read the batches before a snapshot, because the snapshot contains only the newest batch of each producer.

    A client that was disconnected when the broker stopped sends all its batches in flight again, up to five.
    """
    offset = producers.snapshot_offset
    parts: list[tuple[Segment, int]] = []
    left = _RECALLED_ENTRIES
    number = segments.number_for(offset - 1)
    while number >= 0 and left > 0 and segments[number].base_offset < offset:
        segment = segments[number]
        if segment.size_bytes:
            count, position = segment.index().back_from(offset, left)
            parts.append((segment, position))
            left -= count
        left -= 1
        number -= 1
    for segment, position in reversed(parts):
        walk = segment.walk(position, _RECALL_BYTES)
        for _, _, next_offset, _ in walk:
            if next_offset > offset:
                break
            producers.recall(walk.header())


def _replaying(producers: ProducerStates, segments: Segments, end: int, trusted: int) -> Generator[None, None, None]:
    """Read the batches after the snapshot. From `trusted` on, add aborted transactions to the transaction indexes."""
    replay_from = max(producers.snapshot_offset, segments.first.base_offset)
    if replay_from >= end:
        return
    for number in range(segments.number_for(replay_from), len(segments)):
        segment = segments[number]
        located = segment.locate(replay_from) if replay_from > segment.base_offset else (0, 0, 0)
        if located is None:
            continue
        walk = segment.walk(located[0])
        for number_of_batch, (at, _, _, size) in enumerate(walk, 1):
            if not number_of_batch % SLICE_BATCHES:
                yield
            batch = walk.header()
            if batch.producer_id < 0 or batch.base_offset < replay_from:
                continue
            ended = producers.update(segment.batch_at(at, size) if batch.is_control else batch)
            if ended is not None:
                note_end(producers, segments, segment, ended, has_index=batch.base_offset < trusted)


def _end_cleaned(producers: ProducerStates, segments: Segments) -> None:
    """End transactions that are open in the snapshot, but whose records and marker are missing.

    Cleaning has removed the records and the marker, so these transactions had ended: it removes no records of an open
    transaction.
    """
    for known in producers:
        first = known.current_txn_first_offset
        if segments.first.base_offset <= first < producers.snapshot_offset:
            last = known.batches[-1].last_offset if known.batches else first
            if not any(_is_transactional(segments, known, offset) for offset in (first, last)):
                producers.forget_transaction(known)


def _is_transactional(segments: Segments, producer: Producer, offset: int) -> bool:
    """Whether the record at this offset belongs to a transaction of the producer."""
    segment = segments.holding(offset)
    located = segment.locate(offset)
    if located is None or located[1] > offset:
        return False
    batch = segment.batch_at(located[0], HEADER_BYTES)
    return batch.producer_id == producer.producer_id and batch.is_transactional


def note_end(
    producers: ProducerStates, segments: Segments, segment: Segment, ended: Ended, *, has_index: bool = False
) -> None:
    """Process the end of a transaction, whose marker is in `segment`. Add it to the transaction index if it was
    aborted, unless `has_index`."""
    last_stable = producers.transactions.end(ended)
    if ended.aborted and not has_index:
        segments.note_aborted()
        segment.aborted.add(AbortedTransaction(ended.producer_id, ended.first_offset, ended.last_offset, last_stable))
