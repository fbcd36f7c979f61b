"""Topics that get more partitions (CreatePartitions): the new ones are written to, read, and given to members."""

from __future__ import annotations

from random import Random

from kpybroker.errors import ErrorCode
from kpybroker.sim.actors.actor import Actor
from kpybroker.sim.actors.requests import partitions_of
from kpybroker.sim.clients.client import Client, Refused, Unanswered
from kpybroker.sim.clients.producing import Producer
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.topic_admin import ADMIN_LIMIT_S
from kpybroker.wire.rpc import create_partitions

PARTITIONS_MAX = 5
PRODUCERS_MAX = 2
PACE_S = 8.0
TOO_FEW = int(ErrorCode.INVALID_PARTITIONS)


class NewPartitions(Actor):
    """Those that were made are places of the run as all others."""

    name = "partitions"
    odds = 0.12
    checks = "partitions that were made"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.counts: dict[str, int] = {}
        """How many there are at least, by topic."""
        self._producers = 0

    def start(self) -> None:
        random = Random(f"partitions {self.run.setup.seed}")
        for name, index in self.run.worked:
            self.counts[name] = max(self.counts.get(name, 0), index + 1)
        client = self.run.client("grower")
        self.run.start(client, Grower(client, self, random.choice(sorted(self.counts))))

    def there_are(self, name: str, count: int) -> None:
        """So many partitions were told: whoever is new is used from now on."""
        run = self.run
        for index in range(self.counts[name], count):
            place = name, index
            run.places.append(place)
            run.worked.append(place)
            run.history.count("partitions made")
            if self._producers < PRODUCERS_MAX:
                self._producers += 1
                client = run.client(f"new{self._producers}")
                worker = Producer(
                    client, place, acks=-1, idempotent=True, pace_s=run.pace_s, tires_after=run.tires_after
                )
                run.start(client, worker)
        self.counts[name] = max(self.counts[name], count)

    async def check(self, auditor: Client) -> None:
        for name, count in self.counts.items():
            there = len(await partitions_of(auditor, name))
            if there < count:
                self.run.history.breach(f"{name} had {count} partitions, and has {there}")


class Grower:
    """Gives one topic one partition more, again and again."""

    def __init__(self, client: Client, partitions: NewPartitions, topic: str) -> None:
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
                client.note(f"does not know of the partitions of {name}: {failed}")
                await client.nap(1.0)

    async def _grow(self, count: int) -> None:
        """Raises Unanswered, Refused."""
        client, name = self._client, self._topic
        topic = create_partitions.CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = create_partitions.Request(topics=[topic], timeout_ms=5000)
        told = await client.ask(client.any_broker(), "CreatePartitions", request, limit_s=ADMIN_LIMIT_S)
        code = told.results[0].error_code
        if code == TOO_FEW:
            return  # done before, where that went unanswered
        if code:
            raise Refused(code)
        client.note(f"{name} has {count} partitions")
        if not client.stopping:
            self._partitions.there_are(name, count)
