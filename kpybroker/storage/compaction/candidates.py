"""Selects the part of a log that may be compacted, decides whether to compact it, and groups the segments to merge.

A log is clean up to `Log.cleaned_end` (the cleaner-offset-checkpoint), and dirty above that offset. Three kinds of
segments are not cleaned: the active segment, segments that are not entirely below the last stable offset, and segments
with records younger than min.compaction.lag.ms. As in Kafka, a log can be cleaned if its share of dirty bytes is above
min.cleanable.dirty.ratio, or if its dirty records have waited longer than max.compaction.lag.ms (KIP-354). The log with
the largest share is cleaned first. Unlike in Kafka, the log of an internal topic is cleaned earlier, and its active
segment is rolled for that, because a coordinator has to replay the whole log before it can respond.
"""

from __future__ import annotations

from typing import NamedTuple

from kpybroker.config.log_settings import LONG_MAX
from kpybroker.storage.files.segment import INDEX, MAX_RELATIVE_OFFSET, Segment
from kpybroker.storage.log.log import Log
from kpybroker.storage.log.retention import age_from_ms

REPLAYED_BYTES = 64 << 10
REPLAYED_SHARE = 1 / 3
"""The largest dirty share of a log that a coordinator replays."""
_GROUP_LIMIT = 32
"""The maximum number of segments that are merged into one, because their files are renamed in one turn."""


class Dirty(NamedTuple):
    """The part of a log to clean: its first `segments` segments, in which the offsets from `first` to `end` are
    dirty."""

    log: Log
    segments: int
    first: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """Whether records have waited longer than max.compaction.lag.ms."""

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes)

    @property
    def is_worth_while(self) -> bool:
        settings = self.log.settings
        share = settings.min_cleanable_dirty_ratio
        return self.is_overdue or self.ratio > (min(REPLAYED_SHARE, share) if settings.replayed else share)


def outgrows_replay(log: Log) -> bool:
    """Whether the active segment is larger than the dirty part of a replayed log should be."""
    if not (log.settings.replayed and log.settings.compacted) or log.offline is not None:
        return False
    active_bytes = log.segments.active.size_bytes
    rest_bytes = log.size_bytes - active_bytes
    share = REPLAYED_SHARE / (1 - REPLAYED_SHARE)
    return active_bytes > max(REPLAYED_BYTES, rest_bytes * share) and log.last_stable >= log.end


def look(log: Log, now_ms: int) -> Dirty | None:
    """The part that may be cleaned now, or None. May wait for the disk to read time indexes. Raises OSError."""
    if not log.settings.compacted or log.offline is not None:
        return None
    first = log.cleaned_end if log.start <= log.cleaned_end <= log.end else log.start
    count, clean_bytes, dirty_bytes, end = 0, 0, 0, first
    oldest_ms = LONG_MAX
    for segment, following in zip(log.segments, list(log.segments)[1:], strict=False):
        if following.base_offset > log.last_stable:
            break
        if following.base_offset > first:
            if _is_young(log, segment, now_ms):
                break
            dirty_bytes += segment.size_bytes
            if log.settings.max_compaction_lag_ms < LONG_MAX and 0 < (began_ms := segment.began_ms()) < oldest_ms:
                oldest_ms = began_ms
        else:
            clean_bytes += segment.size_bytes
        count += 1
        end = following.base_offset
    if end <= first or not dirty_bytes:
        return None
    is_overdue = oldest_ms < now_ms - log.settings.max_compaction_lag_ms
    return Dirty(log, count, first, end, clean_bytes, dirty_bytes, is_overdue)


def _is_young(log: Log, segment: Segment, now_ms: int) -> bool:
    lag_ms = log.settings.min_compaction_lag_ms
    return lag_ms > 0 and bool(segment.size_bytes) and age_from_ms(log.files.world.disk, segment) > now_ms - lag_ms


def groups(log: Log, segments: list[Segment], following_offset: int) -> list[list[Segment]]:
    """Divide neighbouring segments into groups, each of which fits into one segment. Raises OSError.

    `following_offset` is the base offset of the segment after them.
    """
    found: list[list[Segment]] = []
    size_bytes = index_bytes = 0
    ends = [segment.base_offset for segment in segments[1:]] + [following_offset]
    for segment, end in zip(segments, ends, strict=True):
        own_index_bytes = _index_bytes(log, segment)
        if (
            found
            and len(found[-1]) < _GROUP_LIMIT
            and size_bytes + segment.size_bytes <= log.settings.segment_bytes
            and index_bytes + own_index_bytes <= log.settings.segment_index_bytes
            and end - 1 - found[-1][0].base_offset <= MAX_RELATIVE_OFFSET
        ):
            found[-1].append(segment)
            size_bytes += segment.size_bytes
            index_bytes += own_index_bytes
        else:
            found.append([segment])
            size_bytes, index_bytes = segment.size_bytes, own_index_bytes
    return found


def _index_bytes(log: Log, segment: Segment) -> int:
    path, disk = segment.path + INDEX, log.files.world.disk
    return disk.path_size(path) if disk.exists(path) else 0
