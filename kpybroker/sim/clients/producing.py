"""Producers: plain ones that never send twice, and idempotent ones that send again until they are answered."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Any

from kpybroker.errors import ErrorCode
from kpybroker.sim.clients.client import Client, Refused, Unanswered
from kpybroker.sim.world.history import Place, Sent
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import init_producer_id, produce

PRODUCE_LIMIT_MS = 5000
IN_FLIGHT_MAX = 5
FAILURES_MAX = 200
"""Attempts in a row before an idempotent producer counts as refused for good."""
DEPOSED_S = 30.0
"""A leader that was deposed and does not know it yet says so too, for as long as it is cut off."""
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
"""For the first batch in flight these mean that the broker has lost or spoilt something."""


@dataclass(slots=True)
class Parcel:
    """A batch on its way, and the records that are in it."""

    batch: bytes
    records: list[Sent]


class Producer:
    """Writes to one partition. `acks` is 1 or -1 (all); an idempotent one has up to five batches in flight.

    After `tires_after` records it takes twice the time for the next one, after as many again three times, and so on.
    """

    def __init__(
        self,
        client: Client,
        place: Place,
        *,
        acks: int,
        idempotent: bool,
        pace_s: float,
        tires_after: int,
        codecs: tuple[int, ...] = (),
    ) -> None:
        """`codecs`: each batch is compressed with one of them."""
        assert not idempotent or acks == -1, "idempotence wants acks=all"
        self._client = client
        self._place = place
        self._acks = acks
        self._idempotent = idempotent
        self._pace_s = pace_s
        self._tires_after = tires_after
        self._codecs = codecs
        self._number = 0
        self._sequence = 0
        self._producer_id = -1

    async def run(self) -> None:
        while not self._client.stopping:
            if self._idempotent:
                await self._send_in_order()
            else:
                await self._send_once()
            # where nothing stands in its way it would write most, and find least
            await self._client.nap(self._pace_s * (1 + self._number / self._tires_after))

    def _new_sent(self) -> Sent:
        """One more record, of any length."""
        client = self._client
        value = b"%s/%d" % (client.name.encode(), self._number)
        value += b"." * client.random.choice((0, 10, 200))
        self._number += 1
        return Sent(value, self._place, self._acks, self._idempotent)

    def _new_parcel(self) -> Parcel:
        client = self._client
        records = [self._new_sent() for _ in range(client.random.choice((1, 1, 1, 3)))]
        stored = [sent.stored for sent in records]
        for sent in records:
            client.history.sends(client.name, sent)
        now_ms = client.wall_ms()
        codec = client.random.choice(self._codecs) if self._codecs else 0
        if not self._idempotent:
            return Parcel(bytes(encode_batch(stored, timestamp_ms=now_ms, codec=codec)), records)
        sequence, self._sequence = self._sequence, self._sequence + len(records)
        batch = encode_batch(
            stored,
            timestamp_ms=now_ms,
            codec=codec,
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=sequence,
        )
        return Parcel(bytes(batch), records)

    async def _send_once(self) -> None:
        """At most once: whatever happens, it is not sent again."""
        client, parcel = self._client, self._new_parcel()
        try:
            await self._produce(parcel)
            client.succeeded()
        except (Unanswered, Refused) as failed:
            client.note(f"does not know of {parcel.records[0].value[:20]!r}: {failed}")
            client.forget_topic(self._place[0])
            await client.nap(0.5)

    async def _send_in_order(self) -> None:
        """Exactly once: several in flight, and what is not acknowledged is sent again, in its order."""
        client = self._client
        if self._producer_id < 0 and not await self._begin():
            return
        # until one batch is there, the broker takes any as the first, as Kafka does: so the first one goes alone
        count = client.random.randint(1, IN_FLIGHT_MAX) if self._sequence else 1
        waiting = [self._new_parcel() for _ in range(count)]
        failures, hopeless_since_s = 0, math.inf
        while waiting:
            outcomes = await self._send_together(waiting)
            hopeless_since_s = min(hopeless_since_s, client.history.now_s) if outcomes[0] in HOPELESS else math.inf
            if client.history.now_s - hopeless_since_s > DEPOSED_S or failures > FAILURES_MAX:
                code = outcomes[0]
                what = ErrorCode(code).name if code is not None else "nothing"
                client.history.breach(f"{client.name} is told {what} for a batch that follows what was acknowledged")
                self._producer_id = -1
                return
            first = next((at for at, code in enumerate(outcomes) if code != 0), len(waiting))
            if first:
                client.succeeded()
                failures = 0
            waiting = [parcel for parcel, code in zip(waiting, outcomes, strict=True) if code != 0]
            if waiting:
                failures += 1
                client.forget_topic(self._place[0])
                await client.nap(0.5)

    async def _send_together(self, parcels: list[Parcel]) -> list[int | None]:
        """All on one connection, one behind the other; returns the error code of each, None where nobody answered."""
        client = self._client
        try:
            node_id = (await client.leader(*self._place)).node_id
            await client.peer(node_id)  # dialled by each for itself, they could overtake each other
        except Unanswered:
            return [None] * len(parcels)
        return await asyncio.gather(*(self._outcome(parcel) for parcel in parcels))

    async def _begin(self) -> bool:
        client = self._client
        try:
            node_id = (await client.leader(*self._place)).node_id
            told = await client.ask(node_id, "InitProducerId", init_producer_id.Request(transactional_id=None))
        except Unanswered:
            client.forget_topic(self._place[0])
            await client.nap(0.5)
            return False
        if told.error_code:
            await client.nap(0.5)
            return False
        self._producer_id, self._sequence = told.producer_id, 0
        client.history.producer_id(client.name, told.producer_id)
        return True

    async def _outcome(self, parcel: Parcel) -> int | None:
        """The error code; None where nothing was answered."""
        try:
            await self._produce(parcel)
        except Unanswered:
            return None
        except Refused as refused:
            return refused.code
        return 0

    async def _produce(self, parcel: Parcel) -> None:
        """Raises Unanswered, Refused."""
        client, (name, index) = self._client, self._place
        node_id, _, topic_id = await client.leader(name, index)
        data: Any = produce.PartitionProduceData(index=index, records=parcel.batch)
        topic = produce.TopicProduceData(name=name, topic_id=topic_id, partition_data=[data])
        request = produce.Request(acks=self._acks, timeout_ms=PRODUCE_LIMIT_MS, topic_data=[topic])
        told = await client.ask(node_id, "Produce", request)
        row = told.responses[0].partition_responses[0]
        if row.error_code and row.error_code != DUPLICATE:
            raise Refused(row.error_code)
        for number, sent in enumerate(parcel.records):
            known = row.base_offset >= 0 and not row.error_code
            client.history.acked(sent, row.base_offset + number if known else -1)
