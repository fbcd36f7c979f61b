"""The two sparse indexes of a segment, kept in memory as the same bytes as on disk.

An entry of the offset index has 8 bytes (relative offset int32, position int32): the last offset of a batch, and the
position where the batch begins. An entry of the time index has 12 bytes (timestamp int64, relative offset int32): the
largest timestamp so far, and the last offset of its batch. Entries are ascending, so they are searched by bisection.
Files contain exactly the entries. Kafka preallocates the files of the active segment and trims them later.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from struct import Struct
from typing import ClassVar, Final

OFFSET_ENTRY: Final = Struct(">ii")
TIME_ENTRY: Final = Struct(">qi")


def whole(content: bytes, entry_bytes: int) -> bytes:
    """The whole entries, without a partial entry that a crash may have left at the end."""
    return content[: len(content) - len(content) % entry_bytes]


class OffsetIndex:
    """The offset index, which shows where to begin reading to find an offset."""

    __slots__ = ("base_offset", "entries", "saved_bytes")
    entry_bytes: ClassVar[int] = OFFSET_ENTRY.size

    def __init__(self, base_offset: int, entries: bytes | bytearray = b"") -> None:
        self.base_offset = base_offset
        self.entries = bytearray(entries)
        self.saved_bytes = len(entries)

    def __len__(self) -> int:
        return len(self.entries) >> 3

    def add(self, last_offset: int, position: int) -> None:
        """Add an entry for the batch at `position`, which ends with `last_offset`."""
        self.entries += OFFSET_ENTRY.pack(last_offset - self.base_offset, position)

    def entry(self, number: int) -> tuple[int, int]:
        """The last offset and the position in an entry."""
        relative, position = OFFSET_ENTRY.unpack_from(self.entries, number << 3)
        return self.base_offset + relative, position

    def last(self) -> tuple[int, int] | None:
        return self.entry(len(self) - 1) if self.entries else None

    def position_for(self, offset: int) -> int:
        """The largest indexed position at or before the batch that contains `offset`; 0 if there is none."""
        found = self._count_up_to(offset)
        return self.entry(found - 1)[1] if found else 0

    def end_for(self, offset: int) -> int | None:
        """An indexed position at or after the end of the batch that contains `offset`; None if there is none."""
        found = self._count_up_to(offset - 1) + 1
        return self.entry(found)[1] if found < len(self) else None

    def _count_up_to(self, offset: int) -> int:
        relative, entries = offset - self.base_offset, self.entries
        return bisect_right(range(len(self)), relative, key=lambda at: OFFSET_ENTRY.unpack_from(entries, at << 3)[0])

    def back_from(self, offset: int, entries: int) -> tuple[int, int]:
        """The number of entries below `offset`, at most `entries`, and the position in the entry before them, or 0."""
        found = self._count_up_to(offset - 1)
        return min(found, entries), self.entry(found - entries)[1] if found > entries else 0

    def floor(self, offset: int, position: int) -> int:
        """The largest indexed position that is at most `position`, of a batch that ends at or below `offset`."""
        entries = self.entries
        found = bisect_right(range(len(self)), position, key=lambda at: OFFSET_ENTRY.unpack_from(entries, at << 3)[1])
        if found and self.entry(found - 1)[0] > offset:
            found = self._count_up_to(offset)  # offsets and positions are both ascending, so this count is smaller
        return self.entry(found - 1)[1] if found else 0

    def note_saved(self, size_bytes: int) -> None:
        """Store how many bytes of `entries` the file contains."""
        self.saved_bytes = size_bytes

    def cut(self, position: int) -> None:
        """Remove the batches that begin at or after `position`."""
        entries = self.entries
        kept = bisect_left(range(len(self)), position, key=lambda at: OFFSET_ENTRY.unpack_from(entries, at << 3)[1])
        del self.entries[kept << 3 :]
        self.saved_bytes = min(self.saved_bytes, len(self.entries))


class TimeIndex:
    """The time index, which shows where to begin reading to find a timestamp."""

    __slots__ = ("base_offset", "entries", "saved_bytes")
    entry_bytes: ClassVar[int] = TIME_ENTRY.size

    def __init__(self, base_offset: int, entries: bytes | bytearray = b"") -> None:
        self.base_offset = base_offset
        self.entries = bytearray(entries)
        self.saved_bytes = len(entries)

    def __len__(self) -> int:
        return len(self.entries) // TIME_ENTRY.size

    def add(self, timestamp: int, offset: int) -> None:
        """Add an entry for the largest timestamp so far, in the batch that ends with `offset`. If the previous entry
        has the same timestamp, no entry is added."""
        last = self.last()
        if timestamp > (-1 if last is None else last[0]):
            self.entries += TIME_ENTRY.pack(timestamp, offset - self.base_offset)

    def entry(self, number: int) -> tuple[int, int]:
        """The timestamp in an entry, and the last offset of its batch."""
        timestamp, relative = TIME_ENTRY.unpack_from(self.entries, number * TIME_ENTRY.size)
        return timestamp, self.base_offset + relative

    def last(self) -> tuple[int, int] | None:
        return self.entry(len(self) - 1) if self.entries else None

    def offset_before(self, timestamp: int) -> int:
        """An offset before which no record has a timestamp of at least `timestamp`. It may be the base offset."""
        entries, size = self.entries, TIME_ENTRY.size
        found = bisect_left(range(len(self)), timestamp, key=lambda at: TIME_ENTRY.unpack_from(entries, at * size)[0])
        return self.entry(found - 1)[1] if found else self.base_offset

    def note_saved(self, size_bytes: int) -> None:
        """Store how many bytes of `entries` the file contains."""
        self.saved_bytes = size_bytes

    def cut(self, offset: int) -> None:
        """Remove the batches that end at or after `offset`."""
        entries, size, relative = self.entries, TIME_ENTRY.size, offset - self.base_offset
        kept = bisect_left(range(len(self)), relative, key=lambda at: TIME_ENTRY.unpack_from(entries, at * size)[1])
        del self.entries[kept * size :]
        self.saved_bytes = min(self.saved_bytes, len(self.entries))
