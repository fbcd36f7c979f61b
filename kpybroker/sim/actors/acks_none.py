"""A producer with acks=0. The records of one connection that arrive must be in order and not duplicated."""

from __future__ import annotations

from random import Random

from kpybroker.sim.actors.actor import Actor
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.consuming import latest_offset
from kpybroker.sim.clients.run import Run
from kpybroker.sim.world.history import Sent
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import produce

SLOWS_AFTER = 50
LOOKS_EVERY = 5
"""After this number of requests, the producer requests the latest offset, because it can notice a new leader only in
this way."""


class AcksNone(Actor):
    """Runs one producer with acks=0."""

    name = "acks_none"
    odds = 0.11
    checks = "the order of records sent with acks=0"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._producer: AcksNoneProducer | None = None

    def start(self) -> None:
        run, random = self.run, Random(f"acks_none {self.run.setup.seed}")
        client = run.client("careless")
        self._producer = AcksNoneProducer(client, random.choice(run.writable), pace_s=run.pace_s)
        run.start(client, self._producer)

    async def check(self, auditor: SimClient) -> None:
        """Sends no requests, because the partition has already been read by the check that also finds duplicates."""
        if self._producer is None:
            return
        history, place = self.run.history, self._producer.place
        offsets = {value: offset for offset, (_, value) in history.ledger(place).seen.items()}
        for values in self._producer.connections:
            came = [offsets[value] for value in values if value in offsets]
            history.count("records written with acks=0", len(came))
            if came != sorted(came):
                history.breach(f"records {values[:3]!r}... of one connection with acks=0 are at {came} of {place}")


class AcksNoneProducer:
    """Sends batches with acks=0. `connections` has the values that were sent on each connection."""

    def __init__(self, client: SimClient, place: TopicPartition, *, pace_s: float) -> None:
        self._client = client
        self.place = place
        self._pace_s = pace_s
        self._number = 0
        self.connections: list[list[bytes]] = []
        self._sent_on: object = None
        """The connection of the last batch."""

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            try:
                for _ in range(LOOKS_EVERY):
                    await self._send()
                await latest_offset(client, self.place)
                client.succeeded()
                await client.nap(2 * self._pace_s * (1 + self._number / SLOWS_AFTER))
            except (Unanswered, Refused) as failed:
                client.note(f"cannot send: {failed}")
                client.forget_topic(self.place[0])
                await client.nap(0.5)

    async def _send(self) -> None:
        """Send a batch. Raises Unanswered."""
        client, (name, index) = self._client, self.place
        leader = await client.leader(name, index)
        peer = await client.peer(leader.node_id)
        if peer is not self._sent_on:
            self._sent_on = peer
            self.connections.append([])
        value = b"%s/%d" % (client.name.encode(), self._number)
        self._number += 1
        client.history.sends(client.name, Sent(value, self.place, 0, False))
        self.connections[-1].append(value)
        batch = bytes(encode_batch([(None, value)], timestamp_ms=client.wall_ms()))
        data = produce.PartitionProduceData(index=index, records=batch)
        topic = produce.TopicProduceData(name=name, topic_id=leader.topic_id, partition_data=[data])
        try:
            await peer.send("Produce", produce.Request(acks=0, timeout_ms=5000, topic_data=[topic]))
        except OSError as error:
            raise Unanswered(str(error)) from error
