"""What leaves a log: its oldest segments by time, size and start offset; its newest part by truncation."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kpybroker.storage.files.segment import LOG, SNAPSHOT, Segment, file_name
from kpybroker.storage.log.swapping import remove
from kpybroker.storage.producers.loading import load_producers, snapshot_offsets
from kpybroker.world import Disk

if TYPE_CHECKING:
    from kpybroker.storage.log.log import Log

_log = logging.getLogger(__name__)


def apply_retention(log: Log, now_ms: int) -> int:
    """Delete the segments that the settings give up; returns how many. Raises OSError, Damage, KafkaError."""
    settings = log.settings
    count, why = 0, ""
    over_bytes = log.size_bytes - settings.retention_bytes
    for number, segment in enumerate(log.segments):
        following = log.segments[number + 1].base_offset if number + 1 < len(log.segments) else log.end
        if following > log.high_watermark or (segment is log.segments.active and not segment.size_bytes):
            break
        over_bytes -= segment.size_bytes
        if following <= log.start:
            why = "below the log's start"
        elif settings.deletes and 0 <= settings.retention_ms < now_ms - age_from_ms(log, segment):
            why = "retention.ms"
        elif settings.deletes and settings.retention_bytes >= 0 and over_bytes >= 0:
            why = "retention.bytes"
        else:
            break
        count += 1
    if not count:
        return 0
    log.pool.require_room(log.world.disk)
    if count == len(log.segments):
        log.roll()
    _drop_first(log, count, why)
    return count


def age_from_ms(log: Log, segment: Segment) -> int:
    """The time of the newest record of a segment; of its file, where no record has one. May wait for the disk."""
    largest = segment.largest_timestamp()
    return largest if largest >= 0 else log.world.disk.modified_ms(segment.path + LOG)


def _drop_first(log: Log, count: int, why: str) -> None:
    gone = log.segments.take_first(count)
    first = log.segments.first.base_offset
    _log.info("%r: %d segments below offset %d are deleted: %s", log, count, first, why)
    if first > log.start:
        log.move_start(first)
    if not log.segments.first.size_bytes:
        # its name is all that says, after a crash, where offsets go on
        log.segments.first.handle()
        log.syncing.directory_changed = True
    remove(log, gone)
    for offset in snapshot_offsets(log.world.disk, log.directory):
        if offset < first:
            log.world.disk.unlink(f"{log.directory}/{file_name(offset, SNAPSHOT)}")


def unlink_all(disk: Disk, paths: list[str]) -> None:
    """Unlink files that may be gone already: two segments with one base can have been deleted. Raises OSError."""
    for path in paths:
        if disk.exists(path):
            disk.unlink(path)


def truncate(log: Log, offset: int) -> None:
    """Forget everything at and after `offset`, and the whole of a batch that holds it. Raises OSError, KafkaError."""
    segments, disk = log.segments, log.world.disk
    log.reader.forget()
    if offset < segments.first.base_offset:
        begin_anew(log, offset)
        return
    number = segments.number_for(offset)
    _lower_recovery_point(log, segments[number].base_offset)
    remove(log, segments.take_after(number))
    segment = segments.active
    located = segment.locate(offset)
    if located is not None:
        segment.cut(located[0], located[1])
    else:
        segment.recount()
    disk.sync_blocking(segment.handle())  # before anything is appended: a loss of power must not mix the histories
    disk.sync_directory_blocking(log.directory)
    end = _end_of(segment)  # where cleaning has left a gap, that is below the batch that was found
    for taken in snapshot_offsets(disk, log.directory):
        if taken > end:
            disk.unlink(f"{log.directory}/{file_name(taken, SNAPSHOT)}")
    _end_at(log, end)


def _end_of(segment: Segment) -> int:
    end = segment.base_offset
    last = segment.index().last()
    for _, _, next_offset, _ in segment.walk(last[1] if last else 0):
        end = next_offset
    return end


def begin_anew(log: Log, offset: int) -> None:
    """Forget everything: the log is empty and begins at `offset`. Raises OSError, KafkaError."""
    log.pool.require_room(log.world.disk)
    _lower_recovery_point(log, offset)
    fresh = Segment(log.world.disk, log.pool, log.directory, offset)
    fresh.aborted.begin()
    remove(log, log.segments.replace_all(fresh))
    for taken in snapshot_offsets(log.world.disk, log.directory):
        log.world.disk.unlink(f"{log.directory}/{file_name(taken, SNAPSHOT)}")
    _end_at(log, offset)
    log.move_start(offset)


def _lower_recovery_point(log: Log, offset: int) -> None:
    """Before a file is changed: what takes the place of synced records is not believed unread after a crash."""
    if log.before_cut is not None:
        log.before_cut(offset)


def _end_at(log: Log, end: int) -> None:
    log.changed = True
    log.syncing.cut(end)
    log.epochs.cut_end(end)
    log.end = log.written_end = end
    log.forget_cleaned(end)
    log.start = min(log.start, end)
    log.high_watermark = min(log.high_watermark, end)
    log.producers = load_producers(
        log.world.disk, log.directory, log.segments, end, log.world.wall_ms(), log.producer_expiration_ms, end
    )
    log.snapshot_end = log.producers.snapshot_offset
    log.last_stable = min(log.last_stable, log.stable_below(log.high_watermark))
