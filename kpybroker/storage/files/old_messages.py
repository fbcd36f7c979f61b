"""Finds messages of the formats 0 and 1 in a segment. They are neither damage nor the result of a crash: Apache Kafka
still reads them, so they are never truncated."""

from __future__ import annotations

from kpybroker.errors import Damage
from kpybroker.storage.files.segment import LOG, Segment
from kpybroker.wire.records.old_formats import PREFIX, old_format, size_of

MESSAGE_BYTES_MAX = 1 << 26


def old_message(segment: Segment, position: int) -> Damage | None:
    """The reason why this log cannot be used, if a message of an old format begins at the position. May wait for the
    disk. Raises OSError."""
    size = size_of(segment.read(PREFIX.size, position))
    if not size or size > MESSAGE_BYTES_MAX:
        return None
    found = old_format(segment.read(size, position))
    if found is None:
        return None
    return Damage(
        f"{segment.path}{LOG}: a message of format {found} at position {position}, which only Apache Kafka reads; "
        "nothing was changed: start Apache Kafka on the directory, and copy the topic to a new one"
    )
