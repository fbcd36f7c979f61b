"""Entries as they are read from a delivery log, and a cache of them."""

from __future__ import annotations

from collections import OrderedDict

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.replication.partition.partition import Partition
from kpybroker.scheduled.entries import StoredEntry
from kpybroker.wire.records.batch import read_records, split

KEPT_BYTES = 32 << 20
"""The most bytes of entries that a broker keeps in memory, because their next records may be due soon."""


class EntryCache:
    """The entries that were read last, of all partitions of delivery logs that a broker leads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Partition, int], StoredEntry] = OrderedDict()
        self._kept_bytes = 0

    def get(self, partition: Partition, offset: int) -> StoredEntry | None:
        found = self._kept.get((partition, offset))
        if found is not None:
            self._kept.move_to_end((partition, offset))
        return found

    def keep(self, partition: Partition, offset: int, entry: StoredEntry) -> None:
        """Add an entry. Those that were used least recently are removed if there are too many."""
        if (partition, offset) in self._kept:
            return
        self._kept[partition, offset] = entry
        self._kept_bytes += entry.size_bytes
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1].size_bytes

    def forget(self, partition: Partition, offset: int) -> None:
        """Remove an entry, because all its records have been delivered."""
        found = self._kept.pop((partition, offset), None)
        if found is not None:
            self._kept_bytes -= found.size_bytes

    def forget_all(self, partition: Partition) -> None:
        """Remove the entries of a partition that this broker no longer leads."""
        for known, offset in [key for key in self._kept if key[0] is partition]:
            self.forget(known, offset)


class StoredEntries:
    """Reads the entries of one partition."""

    def __init__(self, partition: Partition, cache: EntryCache) -> None:
        self._partition = partition
        self._cache = cache

    async def find(self, offset: int) -> StoredEntry:
        """The entry at this offset. Raises Damage if it is not there or cannot be read, KafkaError."""
        known = self._cache.get(self._partition, offset)
        if known is not None:
            return known
        storage = self._partition.log
        try:
            found = storage.read(offset, 1, upper=storage.high_watermark, min_one=True)
            if found is None:
                found = await storage.read_cold(offset, 1, upper=storage.high_watermark, min_one=True)
            for batch in split(memoryview(found)):
                for record in read_records(batch):
                    if record.offset == offset and record.key is not None and record.value is not None:
                        entry = StoredEntry(record.key, record.value)
                        self._cache.keep(self._partition, offset, entry)
                        return entry
        except KafkaError as refusal:
            if refusal.code not in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD):
                raise
            raise Damage(f"{self._partition!r} lacks the entry at offset {offset}: {refusal}") from refusal
        raise Damage(f"{self._partition!r} has no entry at offset {offset}")

    def forget(self, offset: int) -> None:
        """Remove an entry from memory, because all its records have been delivered."""
        self._cache.forget(self._partition, offset)
