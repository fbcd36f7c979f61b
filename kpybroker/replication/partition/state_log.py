"""A partition as the log of a Machine: what a coordinator writes to, and what it replays from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.machine.contract import Stored
from kpybroker.replication.partition.partition import Partition
from kpybroker.wire.records.batch import (
    DECOMPRESSED_LIMIT_BYTES,
    HEADER_BYTES,
    Batch,
    Record,
    encode_batch,
    read_records,
    split,
)
from kpybroker.wire.records.compression import pieces
from kpybroker.wire.records.markers import Marker, encode_marker, read_marker
from kpybroker.world import World

log = logging.getLogger(__name__)

READ_BYTES = 1 << 15
RECORDS_A_TURN = 300
"""A replay lets others have their turn so often: a record costs some 4 us, where a machine makes more of it 20."""
WRITE_LIMIT_BYTES = 32 << 20
"""Of keys and values together: a follower has to fetch them as one batch, and be done with it in its time."""
TOLD_LIMIT = 10
"""Batches that cannot be read and are named, in one replay."""
_transaction_of = attrgetter("transaction")


def _encoded(records: list[Record], transaction: tuple[int, int] | Marker | None, now_ms: int) -> bytearray:
    """One batch. In a transaction the sequence is always 0, as Kafka's coordinators write it: nobody checks it."""
    if transaction is None:
        return encode_batch(records, timestamp_ms=now_ms)
    if isinstance(transaction, Marker):
        return encode_marker(transaction, now_ms)
    producer_id, producer_epoch = transaction
    return encode_batch(
        records, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=0, transactional=True
    )


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
        self._partition.on_advance(callback)

    def append(self, records: Sequence[Stored]) -> int:
        """Append as one batch, or one for each transaction, and write. Raises NOT_ENOUGH_REPLICAS, NOT_COORDINATOR
        where it is not led here, UNKNOWN_SERVER_ERROR where it is too much for a batch."""
        partition = self._partition
        if not partition.leads:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if partition.followers is not None:
            partition.require_in_sync(partition.log.settings.min_insync_replicas)
        size_bytes = sum(len(record.key or b"") + len(record.value or b"") for record in records)
        if size_bytes > WRITE_LIMIT_BYTES:
            text = f"{size_bytes} bytes of state to be written at once, and {WRITE_LIMIT_BYTES} may be"
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
        now_ms = self._world.wall_ms()
        batches = []
        for transaction, together in groupby(records, _transaction_of):
            plain = [Record(0, record.timestamp_ms, record.key, record.value) for record in together]
            batches += split(memoryview(_encoded(plain, transaction, now_ms)))
        partition.append(batches, now_ms, client=False)
        partition.flush()
        if partition.offline is not None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, partition.offline)
        return partition.log.end

    async def replay(self) -> AsyncIterator[list[Stored]]:
        """Every record from the start to the end, in order; of control batches the markers of transactions.

        Others have their turns between what is told at once: a log may be long, and a node that answers nobody is taken
        for dead.
        """
        storage = self._partition.log
        await storage.until_written()
        offset, passed_over = storage.start, 0
        while offset < storage.end:
            found = storage.read(offset, READ_BYTES, upper=storage.end, min_one=True)
            if found is None:
                found = await storage.read_cold(offset, READ_BYTES, upper=storage.end, min_one=True)
            if not found:
                return
            run: list[Stored] = []
            for batch in split(memoryview(found)):
                offset = batch.next_offset
                try:
                    told = list(_told_by(batch, await self._plain(batch)))
                except KafkaError as unreadable:
                    passed_over += 1
                    self._tell(batch, unreadable, passed_over)
                    continue
                for stored in told:
                    if stored.offset >= storage.start:
                        run.append(stored)
                        if len(run) == RECORDS_A_TURN:
                            yield run
                            run = []
                            await asyncio.sleep(0)
            yield run
            await asyncio.sleep(0)

    def _tell(self, batch: Batch, unreadable: KafkaError, number: int) -> None:
        """Its bytes are sound, so whoever appended it meant them: no reason to be without all the other batches."""
        if number <= TOLD_LIMIT:
            name = f"{self._partition.topic}-{self._partition.index}"
            log.error(
                "%s: the batch at offset %d cannot be read and is passed over: %s", name, batch.base_offset, unreadable
            )

    async def _plain(self, batch: Batch) -> bytes:
        """The records of a compressed batch, as others write them: they may be much more than their bytes say."""
        if not batch.codec:
            return b""
        body, found = batch.view[HEADER_BYTES:], list[bytes]()
        disk, directory = self._world.disk, self._partition.log.directory
        await disk.off_loop(
            lambda: found.append(b"".join(pieces(batch.codec, body, DECOMPRESSED_LIMIT_BYTES))), directory
        )
        return found[0]


def _told_by(batch: Batch, plain: bytes) -> Iterator[Stored]:
    """What a batch says to a machine; `plain` are its records where they were unpacked."""
    if batch.is_control:
        marker = read_marker(batch)
        if marker is not None:
            yield Stored(None, None, batch.max_timestamp, batch.base_offset, transaction=marker)
        return
    transaction = (batch.producer_id, batch.producer_epoch) if batch.is_transactional else None
    for offset, timestamp_ms, key, value, _ in read_records(batch, plain=plain):
        yield Stored(key, value, timestamp_ms, offset, None, transaction)
