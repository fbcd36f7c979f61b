"""Damages the data of stopped brokers, as a loss of power or a broken disk does."""

from __future__ import annotations

import os
from pathlib import Path

from kpybroker.wire.records.batch import HEADER_BYTES


def segment_of(data: Path, topic: str, partition: int) -> Path:
    """The last segment of a partition. Raises ValueError if this broker has no replica of it."""
    segments = sorted((data / f"{topic}-{partition}").glob("*.log"))
    if not segments:
        raise ValueError(f"{data} has no replica of {topic}-{partition}")
    return segments[-1]


def tear_tail(segment: Path, size_bytes: int) -> None:
    """Cut bytes off the end of a segment. Raises ValueError if it has fewer."""
    found = segment.stat().st_size
    if not 0 < size_bytes <= found:
        raise ValueError(f"cannot cut {size_bytes} bytes off {segment.name}, which has {found}")
    os.truncate(segment, found - size_bytes)


def flip_bit(segment: Path) -> None:
    """Invert a bit of the first record in a segment. Raises ValueError if it has no records."""
    if segment.stat().st_size <= HEADER_BYTES:
        raise ValueError(f"{segment.name} has no records")
    with segment.open("r+b") as file:
        file.seek(HEADER_BYTES)
        [byte] = file.read(1)
        file.seek(HEADER_BYTES)
        file.write(bytes([byte ^ 1]))
