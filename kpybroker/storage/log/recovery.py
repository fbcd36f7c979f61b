"""Loads a log after a clean shutdown, and recovers it after an unclean one.

After a clean shutdown the files are trusted. Otherwise every batch is checked, beginning with the segment of the
recovery point. The log is truncated at the first incomplete or damaged batch, and indexes, leader epochs and producer
state are rebuilt.

Loading is sliced work (`slices.py`): it yields where other work may be done, and has its cold reads done on a thread.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

from kpybroker.config import LogSettings
from kpybroker.errors import Damage
from kpybroker.storage.files.epochs import LeaderEpochs
from kpybroker.storage.files.file_pool import FilePool
from kpybroker.storage.files.old_messages import old_message
from kpybroker.storage.files.segment import (
    INDEX,
    LOG,
    MAX_RELATIVE_OFFSET,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    Segment,
    file_name,
)
from kpybroker.storage.files.segments import Segments
from kpybroker.storage.log.log_files import LogFiles
from kpybroker.storage.log.slices import Work
from kpybroker.storage.log.swapping import CLEANED, DELETED, finish_swaps
from kpybroker.storage.producers.loading import SLICE_BATCHES, loading_producers
from kpybroker.storage.producers.producers import ProducerStates
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import HEADER_BYTES, PREFIX_BYTES, Batch, header_at
from kpybroker.world import Buffer, Disk, World

log = logging.getLogger(__name__)

_SCAN_BYTES = 1 << 20
_ALL = 1 << 63
_LEFTOVERS = (DELETED, CLEANED, ".tmp")


@dataclass(slots=True)
class Loaded:
    """The contents of a log's directory."""

    segments: Segments
    epochs: LeaderEpochs
    producers: ProducerStates
    start: int
    end: int
    cleaned_end: int = 0
    """The offset up to which compaction has cleaned the log."""


@dataclass(slots=True, frozen=True)
class Origin:
    """The data about a log that is available before its files are read."""

    clean: bool
    recovery_point: int
    log_start: int
    now_ms: int
    producer_expiration_ms: int
    cleaned_end: int = 0
    synced_end: int = 0
    """All records below this offset were on disk, so invalid bytes there are damage rather than the result of a
    crash."""


def opening_files(
    world: World,
    pool: FilePool,
    directory: str,
    key: TopicPartition,
    topic_id: bytes | None,
    settings: LogSettings,
    origin: Origin,
    *,
    lazy: bool,
) -> Work[tuple[LogFiles, Loaded]]:
    """Open the files of a log, and return them with the loaded contents. Raises Damage.

    A missing directory is created now or, if `lazy`, with the first batch.
    """
    try:
        exists = world.disk.exists(directory)
        if exists:
            found = yield from _loading(world.disk, pool, directory, settings, origin)
        else:
            if not lazy:
                world.disk.mkdir(directory)
            found = _empty(world.disk, pool, directory, origin.log_start, origin.now_ms)
    except OSError as error:
        raise Damage(f"{directory}: {error}") from error
    files = LogFiles(
        world,
        pool,
        directory,
        key,
        topic_id,
        found.segments,
        found.epochs,
        end=found.end,
        snapshot_end=found.producers.snapshot_offset,
        made=exists or not lazy,
    )
    if not origin.clean:
        files.recovered(min(origin.recovery_point, found.end))
    return files, found


def _empty(disk: Disk, pool: FilePool, directory: str, start: int, now_ms: int) -> Loaded:
    """The contents of a new directory."""
    segments = Segments([Segment(disk, pool, directory, start, created_ms=now_ms)])
    return Loaded(segments, LeaderEpochs(disk, directory), ProducerStates(), start, start)


def _loading(disk: Disk, pool: FilePool, directory: str, settings: LogSettings, origin: Origin) -> Work[Loaded]:
    """Load the contents of a log's directory, and recover them if necessary. Raises Damage, OSError."""
    names = _without_leftovers(disk, directory)
    bases = sorted(int(name[: -len(LOG)]) for name in names if name.endswith(LOG) and name[: -len(LOG)].isdecimal())
    for name in names:
        stem, dot, suffix = name.partition(".")
        if dot + suffix in (INDEX, TIME_INDEX, TXN_INDEX) and stem.isdecimal() and int(stem) not in bases:
            disk.unlink(f"{directory}/{name}")
    now_ms = origin.now_ms
    sizes = [disk.path_size(f"{directory}/{file_name(base, LOG)}") for base in bases]
    found = [
        Segment(disk, pool, directory, base, size, created_ms=now_ms) for base, size in zip(bases, sizes, strict=True)
    ]
    if not found:
        found = [Segment(disk, pool, directory, max(origin.log_start, 0), created_ms=now_ms)]
    segments = Segments(found)
    try:
        return (yield from _loading_segments(disk, pool, directory, settings, origin, names, bases, segments))
    except GeneratorExit:  # the broker stops
        for segment in segments:
            segment.drop_files()
        raise


def _loading_segments(
    disk: Disk,
    pool: FilePool,
    directory: str,
    settings: LogSettings,
    origin: Origin,
    names: list[str],
    bases: list[int],
    segments: Segments,
) -> Work[Loaded]:
    epochs, now_ms = LeaderEpochs(disk, directory), origin.now_ms
    if any(name.endswith(TXN_INDEX) for name in names):
        segments.note_aborted()
    epochs_known = _load_epochs(epochs, names)
    _refuse_emptied(segments, settings, origin)
    if origin.clean:
        end = trusted = yield from _trusting(segments, names, settings, epochs)
    else:
        trusted = segments[segments.first_in_doubt(origin.recovery_point)].base_offset
        end = yield from _recovering(disk, segments, frozenset(names), settings, epochs, origin)
    if bases:
        _refuse_lost_end(segments.active, end, origin)
    start = max(origin.log_start, segments.first.base_offset)
    if start > end:
        log.warning("%s: the log ends at %d, before its start offset %d; it starts over there", directory, end, start)
        for segment in segments.replace_all(Segment(disk, pool, directory, start, created_ms=now_ms)):
            _delete_segment(disk, segment)
        end = trusted = start
    if not epochs_known and end > start:
        epochs.cut_end(0, save=False)  # the recovered segments do not contain the epochs of earlier ones
        yield from _reading_epochs(segments, epochs)
    epochs.cut_end(end)
    epochs.cut_start(start)
    producers = yield from loading_producers(
        disk, directory, segments, end, now_ms, origin.producer_expiration_ms, trusted
    )
    return Loaded(segments, epochs, producers, start, end, min(origin.cleaned_end, end))


def _without_leftovers(disk: Disk, directory: str) -> list[str]:
    """Complete or delete the files that an interrupted cleaning or deletion left, and return the names of the
    others."""
    finish_swaps(disk, directory)
    kept = []
    for name in disk.list(directory):
        if name.endswith(_LEFTOVERS):
            disk.unlink(f"{directory}/{name}")
        else:
            kept.append(name)
    return kept


def _load_epochs(epochs: LeaderEpochs, names: list[str]) -> bool:
    """Load the epochs. Return False if the file is missing or damaged; they are read from the batches then."""
    if "leader-epoch-checkpoint" not in names:
        return False
    try:
        epochs.load()
    except Damage as damage:
        log.warning("%s; leader epochs are read from the batches", damage)
        return False
    return bool(epochs.entries)  # a power failure can leave an empty file


def _reading_epochs(segments: Segments, epochs: LeaderEpochs) -> Work[None]:
    for segment in segments:
        walk = segment.walk()
        for number, (_, base_offset, _, _) in enumerate(walk, 1):
            if not number % SLICE_BATCHES:
                yield None
            epoch = walk.header().leader_epoch
            if epoch > epochs.latest:
                epochs.assign(epoch, base_offset, save=False)
    epochs.save()


def _trusting(segments: Segments, names: list[str], settings: LogSettings, epochs: LeaderEpochs) -> Work[int]:
    """Load the log after a clean shutdown, and return its end offset. Segments without an index are scanned."""
    present = frozenset(names)
    end = segments.first.base_offset
    for segment in segments:
        if segment.size_bytes and _lacks_index(segment, present):
            end = yield from _rebuilding_index(segment, settings, epochs)
        elif segment is segments.active:
            end = _end_of(segment)
    return end


def _lacks_index(segment: Segment, present: frozenset[str]) -> bool:
    return not present.issuperset(file_name(segment.base_offset, suffix) for suffix in (INDEX, TIME_INDEX))


def _rebuilding_index(segment: Segment, settings: LogSettings, epochs: LeaderEpochs) -> Work[int]:
    log.warning("%s%s lacks an index; it is rebuilt", segment.path, LOG)
    end, _ = yield from _scanning(segment, settings, epochs, segment.base_offset, _ALL)
    segment.seal()
    return end


def _end_of(segment: Segment) -> int:
    end = segment.base_offset
    if not segment.size_bytes:
        return end
    last = segment.index().last()
    position = last[1] if last else 0
    reached = 0
    for at, _, next_offset, size in segment.walk(position):
        end, reached = next_offset, at + size
    if reached != segment.size_bytes:
        raise old_message(segment, reached) or Damage(
            f"{segment.path}{LOG}: after a clean shutdown, the bytes from {reached} to {segment.size_bytes} are not "
            "batches"
        )
    segment.largest_timestamp()
    segment.count_entries(position)
    return end


def _recovering(
    disk: Disk,
    segments: Segments,
    present: frozenset[str],
    settings: LogSettings,
    epochs: LeaderEpochs,
    origin: Origin,
) -> Work[int]:
    """Check all batches from the segment of the recovery point on, and truncate the log at the first invalid batch.
    Return the end offset."""
    first = segments.first_in_doubt(origin.recovery_point)
    for number in range(first):
        if segments[number].size_bytes and _lacks_index(segments[number], present):
            yield from _rebuilding_index(segments[number], settings, epochs)
    end = segments[first].base_offset
    for number in range(first, len(segments)):
        segment = segments[number]
        if segment.base_offset < end:
            raise Damage(f"{segment.path}{LOG}: begins below offset {end}, where the segment before it ends")
        file_bytes = segment.size_bytes
        end, why = yield from _scanning(segment, settings, epochs, segment.base_offset, origin.synced_end)
        if not why and number + 1 < len(segments) and not settings.compacted:
            following = segments[number + 1].base_offset
            if following > max(end, origin.cleaned_end, origin.synced_end):
                # the gap was not left by cleaning: batches at the end of the segment are missing
                why = f"its batches end before offset {following}, where the next segment begins"
                _refuse_lost_end(segment, end, origin)
        if why:
            lost = segments.take_after(number)
            log.warning(
                "%s%s: %s; truncated at offset %d, position %d: %d bytes and %d later segments are dropped",
                *(segment.path, LOG, why, end, segment.size_bytes, file_bytes - segment.size_bytes, len(lost)),
            )
            for later in lost:
                _delete_segment(disk, later)
            break
        if segment is not segments.active:
            segment.seal()
    return end


def _refuse_emptied(segments: Segments, settings: LogSettings, origin: Origin) -> None:
    """Raise Damage if a segment that is not the last one is empty. Cleaning may leave an empty segment, and so may a
    crash above the synced end."""
    if settings.compacted:
        return
    for number in range(len(segments) - 1):
        segment = segments[number]
        is_trusted = origin.clean or segment.base_offset < origin.synced_end
        if is_trusted and not segment.size_bytes and segment.base_offset >= origin.cleaned_end:
            following = segments[number + 1].base_offset
            raise Damage(
                f"{segment.path}{LOG}: empty, where the batches from offset {segment.base_offset} to {following} "
                "should be; stop the broker, and see `kpybroker storage check` and `repair`"
            )


def _refuse_lost_end(last: Segment, end: int, origin: Origin) -> None:
    if origin.log_start <= end < origin.synced_end:
        raise Damage(
            f"{last.path}{LOG}: its batches end at offset {end}, but all below {origin.synced_end} had been on the "
            "disk; stop the broker, and see `kpybroker storage check` and `repair`"
        )


def _scanning(
    segment: Segment, settings: LogSettings, epochs: LeaderEpochs, end: int, synced_end: int = 0
) -> Work[tuple[int, str]]:
    """Check every batch, truncate the bytes after the last valid batch, and rebuild the indexes.

    Return the end offset and the reason for the truncation, which is "" if nothing was truncated. Raises OSError.
    Raises Damage instead of truncating below `synced_end`, because a crash cannot have caused invalid bytes there, and
    instead of truncating messages of an old format.
    """
    file_bytes = segment.size_bytes
    segment.begin_scan()
    why = ""
    if file_bytes:
        segment.hold()  # other logs open files between two slices, but the indexes in memory are not complete
        try:
            end, why = yield from _checking(segment, file_bytes, settings, epochs, end)
        finally:
            segment.let_go()
    position = segment.size_bytes
    if why and (old := old_message(segment, position)) is not None:
        raise old
    if why and end < synced_end:
        raise Damage(
            f"{segment.path}{LOG}: {why} at position {position}, where offset {end} should be, which had been on the "
            "disk; stop the broker, and see `kpybroker storage check` and `repair`"
        )
    segment.end_scan(file_bytes)
    epochs.save_if_changed()
    return end, why


def _checking(
    segment: Segment, file_bytes: int, settings: LogSettings, epochs: LeaderEpochs, end: int
) -> Work[tuple[int, str]]:
    """Add all batches up to the first invalid one to the segment. Return their end, and why the next one is invalid."""
    why = ""
    chunk: Buffer = b""
    chunk_bytes, chunk_at, position, left = _SCAN_BYTES, 0, 0, SLICE_BATCHES
    while position < file_bytes:
        inside = position - chunk_at
        needed = HEADER_BYTES
        if inside + PREFIX_BYTES <= len(chunk):
            needed = max(header_at(chunk, inside)[1], HEADER_BYTES)
        if position + needed > file_bytes:
            why = f"a batch of {needed} bytes with {file_bytes - position} left"
            break
        if inside + needed > len(chunk):
            segment.give_back(chunk)  # a new chunk in new memory would take twice the time
            chunk_bytes = max(chunk_bytes, needed + HEADER_BYTES)  # so that it also has the next header
            chunk = yield from _reading(segment, min(chunk_bytes, file_bytes - position), position)
            chunk_at = position
            if len(chunk) < needed:
                raise Damage(f"{segment.path}{LOG}: shorter than it was a moment ago")
            continue
        batch = Batch(memoryview(chunk)[inside : inside + needed])
        why = _unsound(batch, segment, end)
        if why:
            break
        if batch.leader_epoch > epochs.latest:
            epochs.assign(batch.leader_epoch, batch.base_offset, save=False)
        segment.add(batch, settings)
        end = batch.next_offset
        position += needed
        left -= 1
        if not left:
            left = SLICE_BATCHES
            yield None
    segment.give_back(chunk)
    return end, why


def _reading(segment: Segment, size: int, position: int) -> Work[Buffer]:
    """Read a piece of a segment that is held, on a thread if it is not in the page cache."""
    yield None
    chunk = segment.read_at_once(size, position)
    if chunk is None or len(chunk) < size:
        chunk = yield partial(segment.read, size, position)
    return chunk


def _unsound(batch: Batch, segment: Segment, end: int) -> str:
    """The reason why these bytes are not the next batch; "" if they are."""
    if batch.size_bytes != len(batch.view):
        return f"a batch of {batch.size_bytes} bytes"
    if batch.magic != 2:
        return f"a batch with magic {batch.magic}"
    if batch.last_offset_delta < 0 or batch.base_offset < end:
        return f"a batch from offset {batch.base_offset} where {end} is next"
    if batch.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
        return f"a batch with offset {batch.last_offset}, too far from the segment's first"
    return "" if batch.crc_ok() else "a batch with a wrong CRC"


def _delete_segment(disk: Disk, segment: Segment) -> None:
    segment.retire()
    for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT):
        if disk.exists(segment.path + suffix):
            disk.unlink(segment.path + suffix)
