"""Reads the delivery log of a topic for commands: the records that will be delivered later."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import NamedTuple

from kpybroker.cli.consuming import TopicReader, find_ends
from kpybroker.client.client import EARLIEST, Client, CommandFailed, check
from kpybroker.errors import Damage, KafkaError
from kpybroker.scheduled.delivered import scheduled_record
from kpybroker.scheduled.entries import (
    INDEX_BITS,
    StoredEntry,
    cancel_key,
    encode_offset,
)
from kpybroker.scheduled.state import DeliveryState
from kpybroker.topics import delivery_log_of
from kpybroker.wire.records.batch import Batch, Record, encode_batch
from kpybroker.wire.rpc import produce

log = logging.getLogger(__name__)
EVER_MS = 1 << 62
AT_ONCE = 500
ADMIN_CLIENT = "__admin_client"
"""The client id with which clients may produce to internal topics."""


class Pending(NamedTuple):
    """A record that will be delivered. Its producer was told the offset of `record`."""

    partition: int
    due_ms: int
    accepted_ms: int
    record: Record
    position: int

    @property
    def name(self) -> str:
        """Partition and offset, as its producer was told."""
        return f"{self.partition}:{self.record.offset}"


class PendingRecords:
    """The pending records of a topic at the time of `open`."""

    def __init__(self, client: Client, topic: str, states: dict[int, DeliveryState]) -> None:
        self._client = client
        self._log = delivery_log_of(topic)
        self._states = states

    @classmethod
    async def open(cls, client: Client, topic: str, tell: Callable[[int, int], None]) -> PendingRecords:
        """Read the whole delivery log. `tell` is called with the number of offsets that were read, and of all.

        Raises CommandFailed, KafkaError, OSError.
        """
        await client.topic(topic)
        name = delivery_log_of(topic)
        known = (await client.metadata([name])).get(name)
        if known is None or known.error_code:
            raise CommandFailed(
                f"the records of {topic} cannot be scheduled: set kpybroker.delivery.scheduled=true on the topic"
            )
        partitions = [row.partition_index for row in known.partitions]
        states = {partition: DeliveryState() for partition in partitions}

        def apply(partition: int, batch: Batch) -> None:
            try:
                for _ in states[partition].applying(batch):
                    pass
            except (Damage, KafkaError) as unreadable:
                log.warning("%s-%d at %d cannot be read: %s", name, partition, batch.base_offset, unreadable)

        starts = await client.list_offsets({(name, each): EARLIEST for each in partitions})
        positions = {each: starts[name, each] for each in partitions}
        ends = await find_ends(client, name, partitions)
        total, reader = sum(ends.values()), TopicReader(client, name, positions, ends, on_batch=apply)
        async with aclosing(reader.pages()) as pages:
            async for _ in pages:
                tell(sum(reader.positions.values()), total)
        for state in states.values():
            state.loaded()
        return cls(client, topic, states)

    def __len__(self) -> int:
        return sum(len(state) for state in self._states.values())

    async def pages(self) -> AsyncGenerator[list[Pending], None]:
        """The pending records in pages, in the order of time. Raises CommandFailed, KafkaError, OSError."""
        found = [
            (due_ms, partition, position)
            for partition, state in self._states.items()
            for due_ms, position in state.due(EVER_MS, len(state.pending))
            if position not in state.cancelled
        ]
        found.sort()
        for begin in range(0, len(found), AT_ONCE):
            page = found[begin : begin + AT_ONCE]
            entries = await self._entries({(partition, position >> INDEX_BITS) for _, partition, position in page})
            yield [
                _pending(entries[partition, position >> INDEX_BITS], due_ms, partition, position)
                for due_ms, partition, position in page
                if (partition, position >> INDEX_BITS) in entries
            ]

    async def _entries(self, places: Iterable[tuple[int, int]]) -> dict[tuple[int, int], StoredEntry]:
        """Entries by partition and offset; those that were compacted away in the meantime are missing."""
        found = {}
        for partition, offset in sorted(places):
            reader = TopicReader(self._client, self._log, {partition: offset}, {partition: offset + 1})
            async with aclosing(reader.pages()) as pages:
                page: list[tuple[int, Record]] = await anext(pages, [])
            for _, record in page:
                if record.offset == offset and record.key is not None and record.value is not None:
                    found[partition, offset] = StoredEntry(record.key, record.value)
        return found

    async def cancel(self, pending: Pending) -> None:
        """Write to the delivery log that a record will not be delivered. Raises CommandFailed, KafkaError, OSError."""
        record = Record(0, pending.accepted_ms, cancel_key(pending.position), encode_offset(pending.due_ms))
        batch = memoryview(encode_batch([record]))

        async def attempt() -> None:
            topic = await self._client.topic(self._log)
            leader = next(row.leader_id for row in topic.partitions if row.partition_index == pending.partition)
            peer = await self._client.dial(leader, ADMIN_CLIENT)
            try:
                row = produce.PartitionProduceData(index=pending.partition, records=batch)
                data = produce.TopicProduceData(name=self._log, topic_id=topic.topic_id, partition_data=[row])
                request = produce.Request(acks=-1, timeout_ms=self._client.timeout_ms, topic_data=[data])
                answer = (await peer.ask("Produce", request)).responses[0].partition_responses[0]
            finally:
                peer.close()
            check(answer.error_code, answer.error_message or f"{self._log}-{pending.partition}")

        await self._client.patiently(attempt)


def _pending(entry: StoredEntry, due_ms: int, partition: int, position: int) -> Pending:
    record = scheduled_record(entry, position & ((1 << INDEX_BITS) - 1))
    return Pending(partition, due_ms, entry.accepted_ms, record, position)
