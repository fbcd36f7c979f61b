"""Reads the records from which dead letters are made."""

from __future__ import annotations

from kpybroker.errors import Damage, KafkaError
from kpybroker.replication.partition.hosting import Hosting
from kpybroker.shares.dead_letters import Sources
from kpybroker.shares.keys import ShareKey
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.batch import Batch, Record, read_records, split
from kpybroker.world import World

READ_BYTES = 1 << 20
"""The maximum number of bytes in one read, as in Kafka. A larger batch is nevertheless read completely."""


async def read_sources(world: World, hosting: Hosting, key: ShareKey, first: int, last: int) -> Sources:
    """The records from the first to the last offset, or fewer if they are large. Records that cannot be read are
    missing."""
    partition = hosting.leads_id(key.topic_id, key.partition)
    if partition is None:
        return Sources({}, last + 1)
    storage = partition.log
    try:
        offset = max(first, storage.start)
        if offset > last:
            return Sources({}, last + 1)
        found = storage.read(offset, READ_BYTES, upper=storage.high_watermark, min_one=True)
        if found is None:
            found = await storage.read_cold(offset, READ_BYTES, upper=storage.high_watermark, min_one=True)
        records: dict[int, Record] = {}
        next_offset = first
        for batch in split(memoryview(found)):
            if batch.base_offset > last:
                break
            next_offset = min(batch.next_offset, last + 1)
            if not batch.is_control:
                records |= await _records_of(world, storage, batch, first, last)
    except (KafkaError, Damage):
        return Sources({}, last + 1)
    return Sources(records, next_offset if next_offset > first else last + 1)


async def _records_of(world: World, storage: Log, batch: Batch, first: int, last: int) -> dict[int, Record]:
    """The records of a batch from `first` to `last`. Read on another thread, because a batch may be large."""
    found: dict[int, Record] = {}

    def read() -> None:
        found.update({record.offset: record for record in read_records(batch) if first <= record.offset <= last})

    await world.disk.off_loop(read, storage.directory)
    return found
