"""The leader of one partition of a delivery log: it reads the log, and delivers records that are due.

A delivery is first written to the log. When it is committed, its records are appended to the partition of the topic as
one batch, with the delivery's sequence: the partition refuses a batch that it already has, so a new leader may send the
newest delivery again. When the batch is acknowledged, its end is written to the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from kpybroker.client.broker_connections import LOST
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.replication.partition.partition import Partition
from kpybroker.scheduled.delivered import Delivered, delivered_batch, delivered_records
from kpybroker.scheduled.entries import (
    ENTRY_HEADER,
    INDEX_BITS,
    Delivery,
    cancel_key,
    delivered_key,
    delivery_key,
    encode_delivered,
    encode_delivery,
    encode_offset,
)
from kpybroker.scheduled.state import DeliveryState
from kpybroker.scheduled.stored_entries import EntryCache, StoredEntries
from kpybroker.wire.records.batch import Batch, Record, encode_batch, split
from kpybroker.world import World

log = logging.getLogger(__name__)

READ_BYTES = 1 << 18
RECORDS_AT_ONCE = 1000
BYTES_AT_ONCE = 512 << 10
"""The most records and bytes of one delivery. A larger record is delivered alone."""
LOOK_S = 0.5
"""The longest sleep while records are pending: the clock of the system may be set."""
RETRY_S, RETRY_MAX_S = 0.05, 5.0
FORGOTTEN = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH})
"""The answers of a partition that does not know the delivery before this one."""
EPOCHS_AHEAD, EPOCH_MAX, FIRST_EPOCH_MASK = 1000, 32767, 0x3FFF
ENDS_AT_ONCE = 1000

INDEX_MASK = (1 << INDEX_BITS) - 1
Send = Callable[[str, int, bytearray], Awaitable[None]]


class DeliveryLeader:
    """Delivers the records of one partition of a delivery log while this broker leads it.

    send: appends a batch to the partition of the topic, on any broker, and returns when it is committed. Raises
    KafkaError, or one of LOST.
    cache: the entries that the broker keeps in memory. count: called with the number of records of each delivery.
    """

    def __init__(
        self,
        world: World,
        partition: Partition,
        topic: str,
        send: Send,
        cache: EntryCache,
        count: Callable[[int], None],
    ) -> None:
        self._count = count
        self._world = world
        self._partition = partition
        self._place = topic, partition.index
        self._send = send
        self._entries = StoredEntries(partition, cache)
        # another log of the same topic had other epochs, so that its deliveries are not taken for those of this one
        self.state = DeliveryState(int.from_bytes(partition.topic_id[:2]) & FIRST_EPOCH_MASK)
        self._due_ms: int | None = None
        """The time of the first record of the delivery in progress."""
        self._found_before: tuple[Sequence[int], list[Delivered | None]] = (), []
        """The positions and the records of the delivery in progress."""
        self._pause_s = RETRY_S
        self._advanced = asyncio.Event()
        partition.on_advance(self._advanced.set)

    def late_ms(self, now_ms: int) -> int:
        """How late the earliest record is that was not delivered yet; 0 if none is due."""
        due_ms = self._due_ms if self._due_ms is not None else self.state.pending.next_due_ms()
        return 0 if due_ms is None or not self.state.is_loaded else max(now_ms - due_ms, 0)

    async def run(self) -> None:
        """Read the log and deliver until the task is cancelled. Errors of the log are logged, and it is tried again."""
        while True:
            try:
                await self._work()
            except (*LOST, KafkaError, Damage) as error:
                level = logging.DEBUG if self._pause_s < 1 else logging.WARNING
                log.log(level, "%s-%d: records are delivered later: %s", *self._place, error)
                await asyncio.sleep(self._pause_s)
                self._pause_s = min(2 * self._pause_s, RETRY_MAX_S)

    async def _work(self) -> None:
        while True:
            self._advanced.clear()
            await self._read()
            state = self.state
            if not state.is_loaded:
                await self._advanced.wait()
            elif state.delivery is not None:
                await self._deliver(state.delivery)
                self._pause_s = RETRY_S
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
        for _ in state.pending.beginning(now_ms, RECORDS_AT_ONCE):
            await asyncio.sleep(0)
        due = state.due(now_ms, RECORDS_AT_ONCE)
        if not due:
            return
        self._due_ms = due[0][0]
        positions = [position for _, position in due]
        found = await self._found(positions)
        count = _fitting(found)
        is_all = count == len(due) < RECORDS_AT_ONCE
        delivery = state.delivery_of(due[:count], now_ms, is_all=is_all)
        if len(delivery.positions) < len(due) or None in found:
            by_position = dict(zip(positions, found, strict=True))
            kept = tuple(position for position in delivery.positions if by_position[position] is not None)
            delivery, found = delivery._replace(positions=kept), [by_position[position] for position in kept]
        self._found_before = delivery.positions, found
        await self._write(delivery)

    async def _found(self, positions: Sequence[int]) -> list[Delivered | None]:
        """The records at these positions. An entry is read once, and other tasks run between two of them. Records that
        cannot be read are None: they are lost, and must not hold up others."""
        by_entry: dict[int, list[int]] = {}
        for number, position in enumerate(positions):
            numbers = by_entry.get(position >> INDEX_BITS)
            if numbers is None:
                numbers = by_entry[position >> INDEX_BITS] = []
            numbers.append(number)
        found: list[Delivered | None] = [None] * len(positions)
        for offset, numbers in by_entry.items():
            try:
                entry = await self._entries.find(offset)
            except Damage as damage:
                log.error("%s-%d: %d scheduled records are lost: %s", *self._place, len(numbers), damage)
                continue
            records = delivered_records(entry, [positions[number] & INDEX_MASK for number in numbers])
            for number, record in zip(numbers, records, strict=True):
                found[number] = record
            await asyncio.sleep(0)
        return found

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
        positions, found = self._found_before
        if positions != delivery.positions:
            found = await self._found(delivery.positions)
        records = [record for record in found if record is not None]
        if records:
            batch = delivered_batch(records, delivery.epoch, delivery.sequence)
            try:
                await self._send(*self._place, batch)
            except KafkaError as refusal:
                if refusal.code not in FORGOTTEN:
                    raise
                # The partition has lost earlier deliveries in an unclean election, or had those of an earlier log, and
                # it does not have this one.
                await self._write(delivery._replace(epoch=next_epoch(delivery.epoch, refusal.code), sequence=0))
                return
            self._count(len(records))
        self._found_before, self._due_ms = ((), []), None
        done = encode_delivered(delivery.epoch, delivery.sequence)
        await self._end((Record(0, self._world.wall_ms(), delivered_key(), done),))

    async def _end(self, more: tuple[Record, ...]) -> None:
        """Write the ends of entries and of cancels to the log, so that compaction can remove them."""
        state, now_ms, records = self.state, self._world.wall_ms(), list(more)
        ended = list(state.ended)[:ENDS_AT_ONCE]
        for offset in ended:
            try:
                entry = await self._entries.find(offset)
            except Damage:
                state.forget(offset)
                continue
            records.append(Record(0, now_ms, entry.key, None, ((ENTRY_HEADER, encode_offset(offset)),)))
        spent = list(state.spent)[:ENDS_AT_ONCE]
        records += [Record(0, now_ms, cancel_key(position), None) for position in spent]
        if records:
            self._append(records)
        for offset in ended:
            self._entries.forget(offset)
        await self._committed()


def _fitting(records: Sequence[Delivered | None]) -> int:
    """How many of the first records are delivered at once. Those that are lost take no room."""
    size_bytes = 0
    for number, record in enumerate(records):
        size_bytes += 0 if record is None else len(record[-1])
        if number and size_bytes > BYTES_AT_ONCE:
            return number
    return len(records)


def next_epoch(epoch: int, code: ErrorCode) -> int:
    """The producer epoch after one that the topic's partition has refused: the next one or, if it has a later epoch,
    one that is far ahead."""
    return min(epoch + 1 if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER else epoch + EPOCHS_AHEAD, EPOCH_MAX)
