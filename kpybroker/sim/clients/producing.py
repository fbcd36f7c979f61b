"""Simulated producers: plain producers, which never retry, and idempotent ones, which retry until acknowledgement."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Any

from kpybroker.errors import ErrorCode
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.world.history import Sent
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import init_producer_id, produce

PRODUCE_LIMIT_MS = 5000
IN_FLIGHT_MAX = 5
FAILURES_MAX = 200
"""After this number of consecutive failed attempts, an idempotent producer counts as refused."""
DEPOSED_S = 30.0
"""The time for which a `HOPELESS` error may come from a leader that is cut off and has not noticed that it was
replaced."""
DUPLICATE = int(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
HOPELESS = frozenset(
    {
        int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        int(ErrorCode.UNKNOWN_PRODUCER_ID),
        int(ErrorCode.INVALID_PRODUCER_EPOCH),
        int(ErrorCode.CORRUPT_MESSAGE),
        int(ErrorCode.INVALID_RECORD),
    }
)
"""For the first batch in flight, these errors mean that the broker has lost or damaged records."""


@dataclass(slots=True)
class InFlightBatch:
    """A batch in flight, and its records."""

    batch: bytes
    records: list[Sent]


class SimProducer:
    """Writes to one partition. `acks` is 1 or -1 (all). An idempotent producer has up to five batches in flight.

    After `slows_after` records, its pauses between records are twice as long, after 2 * `slows_after` three times as
    long, and so on.
    """

    def __init__(
        self,
        client: SimClient,
        place: TopicPartition,
        *,
        acks: int,
        idempotent: bool,
        pace_s: float,
        slows_after: int,
        codecs: tuple[int, ...] = (),
        delays_ms: tuple[int | None, ...] = (),
    ) -> None:
        """`codecs`: each batch is compressed with one of them. `delays_ms`: each record is scheduled after one of
        them, or not (None)."""
        assert not idempotent or acks == -1, "an idempotent producer requires acks=all"
        self._client = client
        self._place = place
        self._acks = acks
        self._idempotent = idempotent
        self._pace_s = pace_s
        self._tires_after = slows_after
        self._codecs = codecs
        self._delays_ms = delays_ms
        self._number = 0
        self._sequence = 0
        self._producer_id = -1

    async def run(self) -> None:
        while not self._client.stopping:
            if self._idempotent:
                await self._send_in_order()
            else:
                await self._send_once()
            # without this, producers of runs without faults would write the most records and find the fewest bugs
            await self._client.nap(self._pace_s * (1 + self._number / self._tires_after))

    def _new_sent(self) -> Sent:
        """A new record of random length."""
        client = self._client
        value = b"%s/%d" % (client.name.encode(), self._number)
        value += b"." * client.random.choice((0, 10, 200))
        self._number += 1
        sent = Sent(value, self._place, self._acks, self._idempotent)
        delay_ms = client.random.choice(self._delays_ms) if self._delays_ms else None
        if delay_ms is not None:
            sent.schedule(client.wall_ms() + delay_ms)
        return sent

    def _new_parcel(self) -> InFlightBatch:
        client = self._client
        records = [self._new_sent() for _ in range(client.random.choice((1, 1, 1, 3)))]
        stored = [sent.stored for sent in records]
        for sent in records:
            client.history.sends(client.name, sent)
        now_ms = client.wall_ms()
        codec = client.random.choice(self._codecs) if self._codecs else 0
        if not self._idempotent:
            return InFlightBatch(bytes(encode_batch(stored, timestamp_ms=now_ms, codec=codec)), records)
        sequence, self._sequence = self._sequence, self._sequence + len(records)
        batch = encode_batch(
            stored,
            timestamp_ms=now_ms,
            codec=codec,
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        return InFlightBatch(bytes(batch), records)

    async def _send_once(self) -> None:
        """Send a batch at most once: never retry it."""
        client, parcel = self._client, self._new_parcel()
        try:
            await self._produce(parcel)
            client.succeeded()
        except (Unanswered, Refused) as failed:
            client.note(f"does not know the fate of {parcel.records[0].value[:20]!r}: {failed}")
            client.forget_topic(self._place[0])
            await client.nap(0.5)

    async def _send_in_order(self) -> None:
        """Send several batches exactly once: retry batches without an acknowledgement in order."""
        client = self._client
        if self._producer_id < 0 and not await self._begin():
            return
        # the first batch is sent alone because, as in Kafka, a broker accepts any sequence from an unknown producer
        count = client.random.randint(1, IN_FLIGHT_MAX) if self._sequence else 1
        waiting = [self._new_parcel() for _ in range(count)]
        failures, hopeless_since_s = 0, math.inf
        while waiting:
            outcomes = await self._send_together(waiting)
            hopeless_since_s = min(hopeless_since_s, client.history.now_s) if outcomes[0] in HOPELESS else math.inf
            if client.history.now_s - hopeless_since_s > DEPOSED_S or failures > FAILURES_MAX:
                code = outcomes[0]
                what = ErrorCode(code).name if code is not None else "nothing"
                client.history.breach(f"{client.name} got {what} for the batch that follows the acknowledged ones")
                self._producer_id = -1
                return
            first = next((at for at, code in enumerate(outcomes) if code != 0), len(waiting))
            if first:
                client.succeeded()
                failures = 0
            waiting = self._unacknowledged(waiting, outcomes)
            if waiting:
                failures += 1
                client.forget_topic(self._place[0])
                await client.nap(0.5)

    def _unacknowledged(self, parcels: list[InFlightBatch], outcomes: list[int | None]) -> list[InFlightBatch]:
        """The batches to send again. The acknowledgement of a batch is one of all earlier ones, for librdkafka, too."""
        last = max((at for at, code in enumerate(outcomes) if code == 0), default=-1)
        for parcel, code in zip(parcels[:last], outcomes[:last], strict=True):
            if code != 0:
                for sent in parcel.records:
                    self._client.history.acked(sent, -1)
        return parcels[last + 1 :]

    async def _send_together(self, parcels: list[InFlightBatch]) -> list[int | None]:
        """Send all batches on one connection, in order. Returns the error code of each response; None if there is
        none."""
        client = self._client
        try:
            node_id = (await client.leader(*self._place)).node_id
            await client.peer(node_id)  # on separate connections, batches could overtake each other
        except Unanswered:
            return [None] * len(parcels)
        return await asyncio.gather(*(self._outcome(parcel) for parcel in parcels))

    async def _begin(self) -> bool:
        client = self._client
        try:
            node_id = (await client.leader(*self._place)).node_id
            response = await client.ask(node_id, "InitProducerId", init_producer_id.Request(transactional_id=None))
        except Unanswered:
            client.forget_topic(self._place[0])
            await client.nap(0.5)
            return False
        if response.error_code:
            await client.nap(0.5)
            return False
        self._producer_id, self._sequence = response.producer_id, 0
        client.history.producer_id(client.name, response.producer_id)
        return True

    async def _outcome(self, parcel: InFlightBatch) -> int | None:
        """The error code of the response; None if there is no response."""
        try:
            await self._produce(parcel)
        except Unanswered:
            return None
        except Refused as refused:
            return refused.code
        return 0

    async def _produce(self, parcel: InFlightBatch) -> None:
        """Send a batch. Raises Unanswered, Refused."""
        client, (name, index) = self._client, self._place
        node_id, _, topic_id = await client.leader(name, index)
        data: Any = produce.PartitionProduceData(index=index, records=parcel.batch)
        topic = produce.TopicProduceData(name=name, topic_id=topic_id, partition_data=[data])
        request = produce.Request(acks=self._acks, timeout_ms=PRODUCE_LIMIT_MS, topic_data=[topic])
        response = await client.ask(node_id, "Produce", request)
        row = response.responses[0].partition_responses[0]
        if row.error_code and row.error_code != DUPLICATE:
            raise Refused(row.error_code)
        for number, sent in enumerate(parcel.records):
            known = row.base_offset >= 0 and not row.error_code
            client.history.acked(sent, row.base_offset + number if known else -1)
