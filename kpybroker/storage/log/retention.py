"""Selects the oldest segments of a log that retention deletes, by time, size and log start offset."""

from __future__ import annotations

from kpybroker.config import LogSettings
from kpybroker.storage.files.segment import LOG, Segment
from kpybroker.storage.files.segments import Segments
from kpybroker.world import Disk


def expired(
    disk: Disk, segments: Segments, settings: LogSettings, start: int, high_watermark: int, end: int, now_ms: int
) -> tuple[int, str]:
    """The number of oldest segments to delete, and the reason. May wait for the disk. Raises OSError.

    `end` is the end offset of the active segment, which may also be deleted unless it is empty. Records above the high
    watermark are never deleted.
    """
    count, why = 0, ""
    over_bytes = segments.size_bytes - settings.retention_bytes
    for number, segment in enumerate(segments):
        following = segments[number + 1].base_offset if number + 1 < len(segments) else end
        if following > high_watermark or (segment is segments.active and not segment.size_bytes):
            break
        over_bytes -= segment.size_bytes
        if following <= start:
            why = "below the log's start"
        elif settings.deletes and 0 <= settings.retention_ms < now_ms - age_from_ms(disk, segment):
            why = "retention.ms"
        elif settings.deletes and settings.retention_bytes >= 0 and over_bytes >= 0:
            why = "retention.bytes"
        else:
            break
        count += 1
    return count, why


def age_from_ms(disk: Disk, segment: Segment) -> int:
    """The timestamp of a segment's newest record, or the time of its file if no record has a timestamp. May wait for
    the disk."""
    largest = segment.largest_timestamp()
    return largest if largest >= 0 else disk.modified_ms(segment.path + LOG)


def unlink_all(disk: Disk, paths: list[str]) -> None:
    """Unlink files. Some may not exist, because two deleted segments may have the same base offset. Raises OSError."""
    for path in paths:
        if disk.exists(path):
            disk.unlink(path)
