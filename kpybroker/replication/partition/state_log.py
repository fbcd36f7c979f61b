"""The state log of a coordinator's Machine: records are written to a partition and replayed from it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import groupby
from operator import attrgetter

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.machine.contract import Stored
from kpybroker.replication.partition.partition import Partition
from kpybroker.replication.partition.stored_records import stored_in
from kpybroker.wire.records.batch import (
    DECOMPRESSED_LIMIT_BYTES,
    HEADER_BYTES,
    Batch,
    Record,
    encode_batch,
    split,
)
from kpybroker.wire.records.compression import pieces
from kpybroker.wire.records.markers import Marker, encode_marker
from kpybroker.world import World

log = logging.getLogger(__name__)

READ_BYTES = 1 << 15
RECORDS_A_TURN = 300
"""A replay yields to the event loop after this many records. Each record takes 4 us, or 20 us with the machine's
work."""
WRITE_LIMIT_BYTES = 32 << 20
"""The limit for the keys and values of one write. A follower must be able to fetch them as one batch within its
timeout."""
LOGGED_LIMIT = 10
"""The most unreadable batches that one replay logs."""
_transaction_of = attrgetter("transaction")


def _encoded(records: list[Record], transaction: tuple[int, int] | Marker | None, now_ms: int) -> bytearray:
    """Encode one batch. In a transaction, its sequence is always 0, as in Kafka's coordinators, because no broker
    checks it."""
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
        """Append one batch, or one batch for each transaction, write it, and return the log end.

        Raises NOT_COORDINATOR if this broker does not lead the partition, NOT_ENOUGH_REPLICAS,
        COORDINATOR_NOT_AVAILABLE if the partition is offline, and UNKNOWN_SERVER_ERROR for more bytes than a batch may
        have.
        """
        partition = self._partition
        if not partition.leads:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if partition.followers is not None:
            partition.require_in_sync(partition.log.settings.min_insync_replicas)
        size_bytes = sum(len(record.key or b"") + len(record.value or b"") for record in records)
        if size_bytes > WRITE_LIMIT_BYTES:
            text = f"a coordinator may write at most {WRITE_LIMIT_BYTES} bytes of state at once, not {size_bytes}"
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
        """Yields all records from start to end, in order. Control batches become the markers of transactions.

        Other tasks of the event loop run in between. A log may be long, and a node that does not respond for too long
        is fenced.
        """
        storage = self._partition.log
        await storage.until_written()
        offset, skipped = storage.start, 0
        while offset < storage.end:
            found = storage.read(offset, READ_BYTES, upper=storage.end, min_one=True)
            if found is None:
                found = await storage.read_cold(offset, READ_BYTES, upper=storage.end, min_one=True)
            if not found:
                return
            run: list[Stored] = []
            for batch in split(memoryview(found)):
                offset = batch.next_offset
                stored_here: list[Stored] = []
                try:
                    for some in stored_in(batch, await self._plain(batch), RECORDS_A_TURN):
                        stored_here += some
                        if len(some) == RECORDS_A_TURN:
                            await asyncio.sleep(0)
                except KafkaError as unreadable:
                    skipped += 1
                    self._log_skipped(batch, unreadable, skipped)
                    continue
                if batch.base_offset < storage.start:
                    stored_here = [stored for stored in stored_here if stored.offset >= storage.start]
                run += stored_here
                while len(run) >= RECORDS_A_TURN:
                    yield run[:RECORDS_A_TURN]
                    del run[:RECORDS_A_TURN]
                    await asyncio.sleep(0)
            yield run
            await asyncio.sleep(0)

    def _log_skipped(self, batch: Batch, unreadable: KafkaError, number: int) -> None:
        """Log a batch that is skipped. Its CRC is correct, so it was written in this form, and the other batches are
        needed."""
        if number <= LOGGED_LIMIT:
            name = f"{self._partition.topic}-{self._partition.index}"
            log.error(
                "%s: the batch at offset %d cannot be read and is skipped: %s", name, batch.base_offset, unreadable
            )

    async def _plain(self, batch: Batch) -> bytes:
        """The decompressed records of a batch; empty if it is not compressed. They may be large, so a thread
        decompresses them."""
        if not batch.codec:
            return b""
        body, found = batch.view[HEADER_BYTES:], list[bytes]()
        disk, directory = self._world.disk, self._partition.log.directory
        await disk.off_loop(
            lambda: found.append(b"".join(pieces(batch.codec, body, DECOMPRESSED_LIMIT_BYTES))), directory
        )
        return found[0]
