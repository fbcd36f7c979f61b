"""A map of limited size in memory, with the newest offset of every key in the part of a log that is being cleaned.

Kafka's setting log.cleaner.dedupe.buffer.size limits its size in bytes. Kafka needs 24 bytes for a key. Here a key is
an entry of a dictionary, and needs ENTRY_BYTES plus its own length. When the map is full, only the offsets that it
covers are cleaned, and the rest is cleaned later.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from kpybroker.storage.compaction.digest import Digest
from kpybroker.wire.records.record_removal import Found

ENTRY_BYTES = 160
"""The size of an entry without its key: two objects, and their share of a hash table that is between one third and two
thirds full."""
_WHOLE_BYTES = 64
"""Longer keys are stored as a digest of this length plus one byte, so that no digest equals a shorter key."""
_SHARDS = 64
"""The number of dictionaries. A dictionary that grows is copied as a whole, so the entries are divided among
several."""


class OffsetMap:
    """The newest offset by key. The entries have at most `limit_bytes` in total, but one entry always fits."""

    __slots__ = ("_left_bytes", "_shards", "latest")

    def __init__(self, limit_bytes: int) -> None:
        self._left_bytes = max(limit_bytes, 1)
        self._shards: list[dict[bytes, int]] = [{} for _ in range(_SHARDS)]
        self.latest = -1
        """Every record up to this offset has been read."""

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def put(self, key: bytes | memoryview, offset: int) -> bool:
        """Set the newest offset of `key`. Offsets must be ascending. Return False if there is no room for another
        key."""
        if len(key) > _WHOLE_BYTES or not isinstance(key, bytes):
            key = map_key(key)
        shard = self._shards[_shard(key)]
        if key not in shard:
            if self._left_bytes <= 0:
                return False
            self._left_bytes -= ENTRY_BYTES + len(key)
        shard[key] = offset
        self.latest = offset
        return True

    def put_all(self, found: list[Found], base_offset: int, first: int) -> bool:
        """Put the keys of records that begin at offset `first` or later. Return False if there is no room for
        another key."""
        for _, _, _, delta, key, _ in found:
            if key is not None and base_offset + delta >= first and not self.put(key, base_offset + delta):
                return False
        return True

    def counted(self, offset: int) -> None:
        """Store that every record up to `offset` has been read, including records without a key."""
        self.latest = max(self.latest, offset)

    def newest(self, key: bytes | memoryview) -> int:
        """The newest offset of a key; -1 if the key is not in the map."""
        if len(key) > _WHOLE_BYTES or not isinstance(key, bytes):
            key = map_key(key)
        return self._shards[_shard(key)].get(key, -1)

    def let_go(self) -> Iterator[None]:
        """Free the memory in steps."""
        while self._shards:
            self._shards.pop()
            yield


def _shard(key: bytes) -> int:
    return hash(key) >> 32 & _SHARDS - 1  # not the low bits, which select the slot within the dictionary


def map_key(key: bytes | memoryview) -> bytes:
    """The key in the form in which the map stores it. `put` and `newest` accept this form without hashing it again."""
    if len(key) <= _WHOLE_BYTES:
        return bytes(key)
    return key if type(key) is Digest else Digest(blake2b(key, digest_size=_WHOLE_BYTES).digest() + b"\0")
