"""Replaces old segments with cleaned ones by renaming files, so that a crash leaves either the old or the new segments.

This is Kafka's protocol. New files are written as `.cleaned`. When they are complete and synced, they are renamed to
`.swap`. Then the old files are renamed to `.deleted`, and finally the suffix `.swap` is removed. If the broker finds
`.cleaned` files at its start, it deletes them. If it finds `.swap` files, it completes the swap: it deletes the old
segments from the base offset to the last batch, and removes the suffix. The `.log` of a segment is renamed last, so
that its name shows how far the renames have come.
"""

from __future__ import annotations

import logging

from kpybroker.storage.files.segment import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name
from kpybroker.wire.records.batch import PREFIX_BYTES, WALKED
from kpybroker.world import Disk

CLEANED, SWAP, DELETED = ".cleaned", ".swap", ".deleted"
FILE_SUFFIXES = (INDEX, TIME_INDEX, TXN_INDEX, LOG)
"""The suffixes of a segment's files, in the order in which the files are renamed."""
_CHUNK_BYTES = 1 << 20
log = logging.getLogger(__name__)


def prepare_swap(disk: Disk, path: str) -> None:
    """Rename the complete and synced files of a cleaned segment to `.swap`. After this, a crash leaves the new segment.

    `path` is the path of the segment without a suffix. Raises OSError.
    """
    for suffix in FILE_SUFFIXES:
        _rename(disk, path + suffix + CLEANED, path + suffix + SWAP)


def finish_swap(disk: Disk, path: str) -> None:
    """Rename the `.swap` files of a cleaned segment to their final names. Called when the old files have been renamed.
    Raises OSError."""
    for suffix in FILE_SUFFIXES:
        _rename(disk, path + suffix + SWAP, path + suffix)


def _rename(disk: Disk, old: str, new: str) -> None:
    if disk.exists(old):
        disk.rename(old, new)


def discard(disk: Disk, path: str) -> None:
    """Delete the files of an abandoned cleaning. Raises OSError."""
    for suffix in FILE_SUFFIXES:
        if disk.exists(path + suffix + CLEANED):
            disk.unlink(path + suffix + CLEANED)


def finish_swaps(disk: Disk, directory: str) -> None:
    """Delete incomplete files and complete interrupted swaps. Called at startup. Raises OSError."""
    names = disk.list(directory)
    unfinished = [base for name in names if (base := _base_of(name, LOG + CLEANED)) is not None]
    first_unfinished = min(unfinished, default=1 << 63)
    begun = []
    for name in names:
        base = _base_of(name, SWAP)
        if base is not None and base >= first_unfinished:
            # Apache Kafka was splitting a segment, or the .log was not renamed yet: the old segments are complete
            disk.unlink(f"{directory}/{name}")
        elif base is not None:
            begun.append((base, name))
    for base in sorted({base for base, name in begun if name.endswith(LOG + SWAP)}):
        end = _next_offset(disk, f"{directory}/{file_name(base, LOG)}{SWAP}", base)
        log.warning("%s: a cleaning of offsets %d to %d was interrupted; completing it", directory, base, end)
        _delete_between(disk, directory, base, max(end, base + 1))
    for _, name in sorted(begun, key=lambda one: one[1].endswith(LOG + SWAP)):
        disk.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP)}")


def _base_of(name: str, ending: str) -> int | None:
    stem = name.partition(".")[0]
    return int(stem) if name.endswith(ending) and stem.isdecimal() else None


def _next_offset(disk: Disk, path: str, base_offset: int) -> int:
    """The offset after the last whole batch of a file; `base_offset` if there is none."""
    handle = disk.open(path)
    try:
        size, position, end = disk.size(handle), 0, base_offset
        chunk, chunk_at = b"", 0
        while position + WALKED.size <= size:
            inside = position - chunk_at
            if inside + WALKED.size > len(chunk):
                chunk, chunk_at, inside = disk.pread(handle, _CHUNK_BYTES, position), position, 0
            first, length, last_delta = WALKED.unpack_from(chunk, inside)
            if length <= 0 or position + length + PREFIX_BYTES > size:
                break
            end = first + last_delta + 1
            position += length + PREFIX_BYTES
        return end
    finally:
        disk.close(handle)


def _delete_between(disk: Disk, directory: str, base_offset: int, end: int) -> None:
    """Delete the old segments. If the `.log` of a segment is missing, its other files belong to the new segment."""
    present = set(disk.list(directory))
    logs = sorted(base for name in present if (base := _base_of(name, LOG)) is not None and base_offset <= base < end)
    for base in logs:
        for suffix in FILE_SUFFIXES:
            name = file_name(base, suffix)
            if name in present:
                disk.unlink(f"{directory}/{name}")
