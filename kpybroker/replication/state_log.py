"""A partition as the log of a Machine: what a coordinator writes to, and what it replays from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.machine import Stored
from kpybroker.replication.partition import Partition
from kpybroker.wire.batch import Record, encode_batch, read_records, split
from kpybroker.world import World

READ_BYTES = 1 << 20


class PartitionLog:
    """The StateLog of a partition that this broker leads."""

    __slots__ = ("_partition", "_world")

    def __init__(self, partition: Partition, world: World) -> None:
        self._partition = partition
        self._world = world

    @property
    def end(self) -> int:
        return self._partition.log.end

    @property
    def committed(self) -> int:
        return self._partition.log.high_watermark

    def on_committed(self, callback: Callable[[], None]) -> None:
        self._partition.on_advance = callback

    def append(self, records: Sequence[Stored]) -> int:
        """Append as one batch and write it. Raises NOT_ENOUGH_REPLICAS, NOT_COORDINATOR where it is not led here."""
        partition = self._partition
        if not partition.leads:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if partition.followers is not None:
            partition.require_in_sync(partition.log.settings.min_insync_replicas)
        now_ms = self._world.wall_ms()
        batch = encode_batch(
            [Record(0, record.timestamp_ms, record.key, record.value) for record in records], timestamp_ms=now_ms
        )
        partition.append(split(memoryview(batch)), now_ms, client=False)
        partition.flush()
        if partition.offline is not None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, partition.offline)
        return partition.log.end

    async def replay(self) -> AsyncIterator[Stored]:
        """Every record from the start to the end, in order; control batches are passed over."""
        storage = self._partition.log
        offset, end = storage.start, storage.end
        while offset < end:
            found = storage.read(offset, READ_BYTES, upper=end, min_one=True)
            if found is None:
                found = await storage.read_cold(offset, READ_BYTES, upper=end, min_one=True)
            if not found:
                return
            for batch in split(memoryview(found)):
                offset = batch.next_offset
                if batch.is_control:
                    continue
                for record in read_records(batch):
                    if record.offset >= storage.start:
                        yield Stored(record.key, record.value, record.timestamp, record.offset)
