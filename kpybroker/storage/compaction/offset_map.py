"""A map of limited size in memory, with the newest offset of every key in the part of a log that is being cleaned.

Kafka's setting log.cleaner.dedupe.buffer.size limits its size in bytes. Kafka needs 24 bytes for a key. Here a key is
an entry of a dictionary, and needs ENTRY_BYTES plus its own length. When the map is full, only the offsets that it
covers are cleaned, and the rest is cleaned later.

A look-up in a large dictionary waits for main memory several times. So an offset is also marked in a bitmap when a
newer one of the same key replaces it, and the records of that part of the log need no second look-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from kpybroker.storage.compaction.digest import Digest
from kpybroker.wire.records.record_removal import Found

if TYPE_CHECKING:
    from mypy_extensions import i64

ENTRY_BYTES = 160
"""The size of an entry without its key: two objects, and their share of a hash table that is between one third and two
thirds full."""
_WHOLE_BYTES = 64
"""Longer keys are stored as a digest of this length plus one byte, so that no digest equals a shorter key."""
_SHARDS: Final = 64
"""The number of dictionaries. A dictionary that grows is copied as a whole, so the entries are divided among
several."""
MARKED_LIMIT: Final = 1 << 26
"""The most offsets for which there is a bitmap. It has a bit for each, also for those that the log lacks."""
_GRAIN_BYTES: Final = 4096
"""By how much the bitmap grows at least."""


class OffsetMap:
    """The newest offset by key, of the records from offset `first` on. The entries and the bitmap have at most
    `limit_bytes` in total, but one entry always fits."""

    __slots__ = ("_first", "_left_bytes", "_marked", "_replaced", "_shards", "latest")

    def __init__(self, limit_bytes: int, first: int) -> None:
        self._left_bytes = max(limit_bytes, 1)
        self._shards: list[dict[bytes, int]] = [{} for _ in range(_SHARDS)]
        self._first = first
        self._marked = first
        """The end of the offsets for which `_replaced` has bits."""
        self._replaced = bytearray()
        self.latest = -1
        """Every record up to this offset has been read."""

    @property
    def marked(self) -> int:
        """The number of offsets in the bitmap."""
        return self._marked - self._first

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def put(self, key: bytes | memoryview, offset: int) -> bool:
        """Set the newest offset of `key`. Offsets must be ascending. Return False if there is no room for another
        key."""
        if len(key) > _WHOLE_BYTES or not isinstance(key, bytes):
            key = map_key(key)
        shard = self._shards[_shard(key)]
        older = shard.get(key)
        if older is None:
            if self._left_bytes <= 0:
                return False
            self._left_bytes -= ENTRY_BYTES + len(key)
        elif older < self._marked:
            at = older - self._first
            self._replaced[at >> 3] |= 1 << (at & 7)
        if offset >= self._marked:
            self._mark_more(offset)
        shard[key] = offset
        self.latest = offset
        return True

    def _mark_more(self, offset: int) -> None:
        """Enlarge the bitmap for `offset`, unless it would get too large."""
        size_bytes = (offset - self._first >> 3) + _GRAIN_BYTES
        more_bytes = size_bytes - len(self._replaced)
        if size_bytes <= MARKED_LIMIT >> 3 and more_bytes <= self._left_bytes:
            self._left_bytes -= more_bytes
            self._replaced += bytes(more_bytes)
            self._marked = self._first + (size_bytes << 3)

    def put_all(self, found: list[Found], base_offset: int) -> bool:
        """Put the keys of records that begin at offset `first` or later. Return False if there is no room for
        another key."""
        first = self._first
        for _, _, _, delta, key, _ in found:
            if key is not None and base_offset + delta >= first and not self.put(key, base_offset + delta):
                return False
        return True

    def counted(self, offset: int) -> None:
        """Store that every record up to `offset` has been read, including records without a key."""
        self.latest = max(self.latest, offset)

    def is_replaced(self, key: bytes | memoryview, offset: int) -> bool:
        """Whether the map has a newer offset of this record's key. A record from `first` on must have been put, if it
        is not above `latest`."""
        if self._first <= offset < self._marked:
            at = offset - self._first
            return bool(self._replaced[at >> 3] >> (at & 7) & 1)
        if len(key) > _WHOLE_BYTES or not isinstance(key, bytes):
            key = map_key(key)
        return self._shards[_shard(key)].get(key, -1) > offset

    def let_go(self) -> Iterator[None]:
        """Free the memory in steps."""
        while self._shards:
            self._shards.pop()
            yield


def _shard(key: bytes) -> int:
    hashed: i64 = hash(key)
    return hashed >> 32 & _SHARDS - 1  # not the low bits, which select the slot within the dictionary


def map_key(key: bytes | memoryview) -> bytes:
    """The key in the form in which the map stores it. The map does not hash this form again."""
    if len(key) <= _WHOLE_BYTES:
        return bytes(key)
    return key if type(key) is Digest else Digest(blake2b(key, digest_size=_WHOLE_BYTES).digest() + b"\0")
