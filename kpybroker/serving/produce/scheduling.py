"""A Produce with scheduled records: they are written to the delivery log, and the rest of their batch to the topic.

The connection waits for both, because the batches of a producer must reach the delivery log in their order. If one of
them has not reached it, later ones of the same producer are refused until it is sent again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.replication.partition.partition import Partition
from kpybroker.scheduled.division import DividedBatch, Part
from kpybroker.scheduled.entries import encode_entry, entry_key
from kpybroker.serving.produce.refusals import refuse_partition
from kpybroker.serving.produce.reply import ProduceReply, Row
from kpybroker.storage.log.admission import Appended
from kpybroker.wire.records.batch import Batch, Record, encode_batch, read_records, split
from kpybroker.wire.rpc.produce import PartitionProduceResponse, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

log = logging.getLogger(__name__)


class EntryRow(NamedTuple):
    """A batch that was appended, and whose scheduled records have to be written to the delivery log."""

    partition: Partition
    batch: DividedBatch
    appended: Appended
    answer: PartitionProduceResponse


def check_scheduling(broker: Broker, partition: Partition, batch: Batch) -> None:
    """Check a batch for a topic with scheduled records before it is appended. Raises KafkaError."""
    logs = broker.coordinators.delivery_logs
    logs.missing.check(partition.topic_id, partition.index, batch)
    if type(batch) is DividedBatch and (parts := batch.scheduled()):
        is_repeated = logs.missing.has(partition.topic_id, partition.index, batch)
        if not is_repeated:  # otherwise it is in the topic already
            logs.check(partition.topic, partition.index, len(parts))


class ScheduledReply(ProduceReply):
    """Waits for the topic's partitions, as for any Produce, then for their delivery logs."""

    __slots__ = ("_broker", "_entries", "_task")

    parallel = False

    def __init__(
        self,
        broker: Broker,
        request: Request,
        result: Response | None,
        rows: Sequence[Row],
        entries: Sequence[EntryRow],
    ) -> None:
        super().__init__(request, result, rows)
        self._broker = broker
        self._entries = entries
        self._task: asyncio.Task[None] | None = None

    def _finish(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._schedule())

    async def _schedule(self) -> None:
        rows = [row for row in self._entries if not row.answer.error_code]
        outcomes = await asyncio.gather(*map(self._schedule_one, rows), return_exceptions=True)
        for row, outcome in zip(rows, outcomes, strict=True):
            if isinstance(outcome, KafkaError):
                refuse_partition(row.answer, outcome)
            elif outcome is not None:
                log.error("bug while records of %r were scheduled", row.partition, exc_info=outcome)
                refuse_partition(row.answer, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
        super()._finish()

    async def _schedule_one(self, row: EntryRow) -> None:
        """Write the entry of a batch. Raises KafkaError, and the entry remains missing."""
        partition, batch, appended, _ = row
        logs, request = self._broker.coordinators.delivery_logs, self.request
        parts = batch.scheduled()
        if appended.duplicate and appended.base_offset >= partition.log.start:
            parts = batch.absent(await _present(partition, appended.base_offset))
        if parts:
            self._check_transaction(partition, batch)
            entry = _entry_batch(partition, batch, parts, appended.base_offset)
            timeout_ms = max(request.timeout_ms, 0)
            await logs.schedule(partition.topic, partition.index, entry, request.transactional_id, timeout_ms)
        logs.missing.remove(partition.topic_id, partition.index, batch)

    @staticmethod
    def _check_transaction(partition: Partition, batch: DividedBatch) -> None:
        """Raise INVALID_TXN_STATE if the transaction of the batch has ended in the meantime."""
        producers = partition.log.producers
        if batch.is_transactional and not producers.has_open(batch.producer_id, batch.producer_epoch):
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the transaction ended before its records were scheduled")


async def _present(partition: Partition, base_offset: int) -> set[int]:
    """The offset deltas of the records that the topic has of a batch. Raises KafkaError."""
    storage = partition.log
    await storage.until_written()
    found = storage.read(base_offset, 1, upper=storage.end, min_one=True)
    if found is None:
        found = await storage.read_cold(base_offset, 1, upper=storage.end, min_one=True)
    return {record.offset - base_offset for record in read_records(split(memoryview(found), 1)[0])}


def _entry_batch(partition: Partition, batch: DividedBatch, parts: Sequence[Part], base_offset: int) -> Batch:
    """The batch for the delivery log: one record, the entry, with the producer and sequence of the divided batch."""
    key = entry_key(partition.log.epoch_at(base_offset), base_offset)
    last_due_ms = max(part.due_ms or 0 for part in parts)
    record = Record(0, last_due_ms, key, encode_entry(batch.entry(parts)))
    encoded = encode_batch(
        [record],
        codec=batch.sent_codec,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        transactional=batch.is_transactional,
    )
    return Batch(memoryview(encoded))
