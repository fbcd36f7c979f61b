"""A Produce with scheduled records: they are written to the delivery log, and the rest of their batch to the topic.

The connection waits for both, because the batches of a producer must reach the delivery log in their order. If one of
them has not reached it, later ones of the same producer are refused until it is sent again.
"""

from __future__ import annotations

import asyncio
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


class EntryRow(NamedTuple):
    """A batch that was appended, and whose scheduled records have to be written to the delivery log."""

    partition: Partition
    batch: DividedBatch
    appended: Appended
    answer: PartitionProduceResponse


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
        await asyncio.gather(*(self._schedule_one(row) for row in self._entries if not row.answer.error_code))
        super()._finish()

    async def _schedule_one(self, row: EntryRow) -> None:
        partition, batch, appended, answer = row
        logs, request = self._broker.coordinators.delivery_logs, self.request
        try:
            parts = batch.scheduled()
            if appended.duplicate:
                parts = batch.absent(await _present(partition, appended.base_offset))
            if not parts:
                return
            self._check_transaction(partition, batch)
            await logs.schedule(
                partition.topic,
                partition.index,
                _entry_batch(partition, batch, parts, appended.base_offset),
                request.transactional_id,
                max(request.timeout_ms, 0),
            )
        except KafkaError as refusal:
            refuse_partition(answer, refusal)
            logs.missing.add(partition.topic_id, partition.index, batch)
        else:
            logs.missing.remove(partition.topic_id, partition.index, batch)

    @staticmethod
    def _check_transaction(partition: Partition, batch: DividedBatch) -> None:
        """Raise INVALID_TXN_STATE if the transaction of the batch has ended in the meantime."""
        producers = partition.log.producers
        if batch.is_transactional and not producers.has_open(batch.producer_id, batch.producer_epoch):
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the transaction ended before its records were scheduled")


async def _present(partition: Partition, base_offset: int) -> set[int]:
    """The offset deltas of the records that the topic has of a batch. Raises KafkaError."""
    log = partition.log
    await log.until_written()
    found = log.read(base_offset, 1, upper=log.end, min_one=True)
    if found is None:
        found = await log.read_cold(base_offset, 1, upper=log.end, min_one=True)
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
