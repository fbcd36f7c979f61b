"""The leader of one partition of a delivery log: it reads the log, and delivers records that are due.

A delivery is first written to the log. When it is committed, its records are appended to the partition of the topic as
one batch, with the delivery's sequence: the partition refuses a batch that it already has, so a new leader may send the
newest delivery again. When the batch is acknowledged, its end is written to the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from kpybroker.client.broker_connections import LOST
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.replication.partition.partition import Partition
from kpybroker.scheduled.division import Delivered, delivered_batch
from kpybroker.scheduled.entries import (
    ENTRY_HEADER,
    INDEX_BITS,
    Delivery,
    Entry,
    cancel_key,
    delivered_key,
    delivery_key,
    encode_delivered,
    encode_delivery,
    encode_offset,
    read_entry,
    read_entry_key,
)
from kpybroker.scheduled.state import DeliveryState
from kpybroker.wire.records.batch import Batch, Record, encode_batch, read_records, split
from kpybroker.world import World

log = logging.getLogger(__name__)

READ_BYTES = 1 << 18
RECORDS_AT_ONCE = 1000
BYTES_AT_ONCE = 512 << 10
"""The most records and bytes of one delivery. A larger record is delivered alone."""
LOOK_S = 0.5
"""The longest sleep while records are pending: the clock of the system may be set."""
RETRY_S, RETRY_MAX_S = 0.05, 5.0
KEPT_BYTES = 8 << 20
"""The most bytes of entries that are kept in memory, because their next records are due soon."""
ENDS_AT_ONCE = 1000

INDEX_MASK = (1 << INDEX_BITS) - 1
NO_ENTRY = Entry(0, 0, [], b"")
Send = Callable[[str, int, bytearray], Awaitable[None]]


class Entries:
    """Reads entries of a delivery log, and keeps the entries that were read last."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._kept: OrderedDict[int, tuple[bytes, Entry]] = OrderedDict()
        self._kept_bytes = 0

    async def find(self, offset: int) -> tuple[bytes, Entry]:
        """The key of the entry at this offset, and the entry. Raises Damage, KafkaError."""
        known = self._kept.get(offset)
        if known is not None:
            self._kept.move_to_end(offset)
            return known
        storage = self._partition.log
        upper = storage.high_watermark
        found = storage.read(offset, 1, upper=upper, min_one=True)
        if found is None:
            found = await storage.read_cold(offset, 1, upper=upper, min_one=True)
        for batch in split(memoryview(found)):
            for record in read_records(batch):
                if record.offset == offset and record.key is not None and record.value is not None:
                    known = record.key, read_entry(record.value)
                    self._keep(offset, known)
                    return known
        raise Damage(f"{self._partition!r} has no entry at offset {offset}")

    def _keep(self, offset: int, entry: tuple[bytes, Entry]) -> None:
        self._kept[offset] = entry
        self._kept_bytes += len(entry[1].records)
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._kept_bytes -= len(dropped.records)

    def forget(self, offset: int) -> None:
        """Remove an entry from memory, because all its records have been delivered."""
        known = self._kept.pop(offset, None)
        if known is not None:
            self._kept_bytes -= len(known[1].records)


class DeliveryLeader:
    """Delivers the records of one partition of a delivery log while this broker leads it.

    send: appends a batch to the partition of the topic, on any broker, and returns when it is committed. Raises
    KafkaError, or one of LOST.
    count: called with the number of records of each delivery, and how late the last of them was in milliseconds.
    """

    def __init__(
        self, world: World, partition: Partition, topic: str, send: Send, count: Callable[[int, int], None]
    ) -> None:
        self._count = count
        self._world = world
        self._partition = partition
        self._topic = topic
        self._send = send
        self._entries = Entries(partition)
        self.state = DeliveryState()
        self._late_ms = 0
        self._advanced = asyncio.Event()
        partition.on_advance(self._advanced.set)

    async def run(self) -> None:
        """Read the log and deliver until the task is cancelled. Errors of the log are logged, and it is tried again."""
        pause_s = RETRY_S
        while True:
            try:
                await self._work()
                pause_s = RETRY_S
            except (*LOST, KafkaError, Damage) as error:
                level = logging.DEBUG if pause_s < 1 else logging.WARNING
                log.log(level, "%s-%d: records are delivered later: %s", self._topic, self._partition.index, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _work(self) -> None:
        while True:
            self._advanced.clear()
            await self._read()
            state = self.state
            if not state.is_loaded:
                await self._advanced.wait()
            elif state.delivery is not None:
                await self._deliver(state.delivery)
            elif state.ended or state.spent:
                await self._end(())
            else:
                now_ms = self._world.wall_ms()
                due_ms = state.next_due_ms()
                if due_ms is not None and due_ms <= now_ms:
                    await self._begin(now_ms)
                else:
                    await self._sleep(due_ms, now_ms)

    async def _sleep(self, due_ms: int | None, now_ms: int) -> None:
        """Wait for the next record in the log, or for the next time at which a record may be due."""
        wait_s = None if due_ms is None else min((due_ms - now_ms) / 1000, LOOK_S)
        try:
            async with asyncio.timeout(wait_s):
                await self._advanced.wait()
        except TimeoutError:
            pass

    async def _read(self) -> None:
        """Apply the log up to the high watermark."""
        state, storage = self.state, self._partition.log
        await storage.until_written()
        while (offset := max(state.applied, storage.start)) < (upper := storage.high_watermark):
            found = storage.read(offset, READ_BYTES, upper=upper, min_one=True)
            if found is None:
                found = await storage.read_cold(offset, READ_BYTES, upper=upper, min_one=True)
            if not found:
                break
            await self._apply(split(memoryview(found)))
        if not state.is_loaded and storage.high_watermark >= self._partition.epoch_start:
            state.loaded()  # a new leader learns only after a while what is committed

    async def _apply(self, batches: list[Batch]) -> None:
        """Apply batches. Other tasks run in between."""
        for batch in batches:
            try:
                for _ in self.state.applying(batch):
                    await asyncio.sleep(0)
            except (Damage, KafkaError) as unreadable:
                log.error("%r: skipped the batch at offset %d: %s", self._partition, batch.base_offset, unreadable)
        await asyncio.sleep(0)

    def _append(self, records: list[Record]) -> None:
        """Append records to the log as one batch, and write it. Raises KafkaError."""
        partition = self._partition
        if not partition.leads:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition.require_in_sync(partition.log.settings.min_insync_replicas)
        partition.append(split(memoryview(encode_batch(records))), self._world.wall_ms(), client=False)
        partition.flush()
        partition.require_online()

    async def _begin(self, now_ms: int) -> None:
        """Write the next delivery to the log. It takes effect when it is read from there."""
        state = self.state
        due = state.due(now_ms, RECORDS_AT_ONCE)
        if not due:
            return
        size_bytes = count = 0
        offset, entry = -1, NO_ENTRY
        for _, position in due:
            if position >> INDEX_BITS != offset:
                offset = position >> INDEX_BITS
                _, entry = await self._entries.find(offset)
            size_bytes += _size_bytes(entry, position)
            if count and size_bytes > BYTES_AT_ONCE:
                break
            count += 1
        is_all = count == len(due) < RECORDS_AT_ONCE
        delivery = state.delivery_of(due[:count], now_ms, is_all=is_all)
        self._late_ms = max(now_ms - due[count - 1][0], 0)
        await self._write(delivery)

    async def _write(self, delivery: Delivery) -> None:
        """Write a delivery to the log, and wait until it is committed."""
        self._append([Record(0, self._world.wall_ms(), delivery_key(), encode_delivery(delivery))])
        await self._committed()

    async def _committed(self) -> None:
        """Wait until all records of the log are committed."""
        end = self._partition.log.end
        while self._partition.log.high_watermark < end:
            self._advanced.clear()
            await self._advanced.wait()

    async def _deliver(self, delivery: Delivery) -> None:
        """Append the records of the delivery to the partition of the topic, and write its end to the log."""
        records = []
        offset, base_offset, entry = -1, -1, NO_ENTRY
        for position in delivery.positions:
            if position >> INDEX_BITS != offset:
                offset = position >> INDEX_BITS
                key, entry = await self._entries.find(offset)
                _, base_offset = read_entry_key(key)
            number = position & INDEX_MASK
            records.append(Delivered(entry, number, base_offset + entry.rows[number][1]))
        if records:
            batch = delivered_batch(records, delivery.epoch, delivery.sequence)
            try:
                await self._send(self._topic, self._partition.index, batch)
            except KafkaError as refusal:
                if refusal.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    raise
                # The partition has lost earlier deliveries, and it does not have this one: an unclean election.
                await self._write(delivery._replace(epoch=delivery.epoch + 1 & 0x7FFF, sequence=0))
                return
            self._count(len(records), self._late_ms)
        done = encode_delivered(delivery.epoch, delivery.sequence)
        await self._end((Record(0, self._world.wall_ms(), delivered_key(), done),))

    async def _end(self, more: tuple[Record, ...]) -> None:
        """Write the ends of entries and of cancels to the log, so that compaction can remove them."""
        state, now_ms, records = self.state, self._world.wall_ms(), list(more)
        ended = list(state.ended)[:ENDS_AT_ONCE]
        for offset in ended:
            key, _ = await self._entries.find(offset)
            records.append(Record(0, now_ms, key, None, ((ENTRY_HEADER, encode_offset(offset)),)))
        spent = list(state.spent)[:ENDS_AT_ONCE]
        records += [Record(0, now_ms, cancel_key(position), None) for position in spent]
        self._append(records)
        for offset in ended:
            self._entries.forget(offset)
        await self._committed()


def _size_bytes(entry: Entry, position: int) -> int:
    number, rows = position & INDEX_MASK, entry.rows
    end = rows[number + 1][0] if number + 1 < len(rows) else len(entry.records)
    return end - rows[number][0]
