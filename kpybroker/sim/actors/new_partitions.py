"""CreatePartitions: clients write to the new partitions and read them, and they are assigned to group members."""

from __future__ import annotations

from random import Random

from kpybroker.errors import ErrorCode
from kpybroker.sim.actors.actor import Actor
from kpybroker.sim.actors.requests import partitions_of
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.producing import SimProducer
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.topic_admin import ADMIN_LIMIT_S
from kpybroker.wire.rpc import create_partitions

PARTITIONS_MAX = 5
PRODUCERS_MAX = 2
PACE_S = 8.0
TOO_FEW = int(ErrorCode.INVALID_PARTITIONS)


class PartitionCreation(Actor):
    """Runs the client. It adds new partitions to `Run.places`, so that all clients and checks use them."""

    name = "partitions"
    odds = 0.11
    checks = "partitions that were created"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.counts: dict[str, int] = {}
        """The lowest possible number of partitions, by topic."""
        self._producers = 0

    def start(self) -> None:
        random = Random(f"partitions {self.run.setup.seed}")
        for name, index in self.run.writable:
            self.counts[name] = max(self.counts.get(name, 0), index + 1)
        client = self.run.client("grower")
        self.run.start(client, Grower(client, self, random.choice(sorted(self.counts))))

    def there_are(self, name: str, count: int) -> None:
        """Record that the topic has at least `count` partitions, and use the new ones from now on."""
        run = self.run
        for index in range(self.counts[name], count):
            place = name, index
            run.places.append(place)
            run.writable.append(place)
            run.history.count("partitions created")
            if self._producers < PRODUCERS_MAX:
                self._producers += 1
                client = run.client(f"new{self._producers}")
                worker = SimProducer(
                    client, place, acks=-1, idempotent=True, pace_s=run.pace_s, slows_after=run.slows_after
                )
                run.start(client, worker)
        self.counts[name] = max(self.counts[name], count)

    async def check(self, auditor: SimClient) -> None:
        for name, count in self.counts.items():
            there = len(await partitions_of(auditor, name))
            if there < count:
                self.run.history.breach(f"{name} had {count} partitions, but now has {there}")


class Grower:
    """Adds one partition at a time to one topic."""

    def __init__(self, client: SimClient, partitions: PartitionCreation, topic: str) -> None:
        self._client = client
        self._partitions = partitions
        self._topic = topic

    async def run(self) -> None:
        client, name = self._client, self._topic
        while not client.stopping:
            try:
                count = len(await partitions_of(client, name))
                if not client.stopping:
                    self._partitions.there_are(name, count)
                if count < PARTITIONS_MAX:
                    await self._grow(self._partitions.counts[name] + 1)
                client.succeeded()
                await client.nap(PACE_S)
            except (Unanswered, Refused) as failed:
                client.note(f"does not know the partitions of {name}: {failed}")
                await client.nap(1.0)

    async def _grow(self, count: int) -> None:
        """Add a partition. Raises Unanswered, Refused."""
        client, name = self._client, self._topic
        topic = create_partitions.CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = create_partitions.Request(topics=[topic], timeout_ms=5000)
        response = await client.ask(client.any_broker(), "CreatePartitions", request, limit_s=ADMIN_LIMIT_S)
        code = response.results[0].error_code
        if code == TOO_FEW:
            return  # an earlier request without a response has created it
        if code:
            raise Refused(code)
        client.note(f"{name} has {count} partitions")
        if not client.stopping:
            self._partitions.there_are(name, count)
