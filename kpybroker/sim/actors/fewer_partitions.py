"""A topic that gets fewer partitions, and gets them back: what was acknowledged can be read, under either name of its
partition, and what was committed for a partition is what is fetched for it."""

from __future__ import annotations

from functools import partial
from random import Random

from kpybroker.config.partition_keys import GRACE, IN_USE
from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import ErrorCode
from kpybroker.metadata.retirements import retired_name
from kpybroker.sim.actors.actor import Actor, Preparation
from kpybroker.sim.actors.requests import partitions_of
from kpybroker.sim.actors.share_writing import ShareWriter
from kpybroker.sim.clients.classic_members import ClassicMembership
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.consuming import Consumer, latest_offset
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.topic_admin import ADMIN_LIMIT_S, create_topic
from kpybroker.sim.cluster.setup import REPLICAS_MAX, TopicSetup
from kpybroker.topics import TopicPartition
from kpybroker.wire.rpc import incremental_alter_configs as rpc

TOPIC, TOTAL = "resized", 4
RETIRED = retired_name(TOPIC)
GRACES_S = (2.0, 10.0)
PACE_S = 6.0
GROUP = "resized-group"
UNKNOWN = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
PLACES: list[TopicPartition] = [(TOPIC, index) for index in range(TOTAL)]


async def shown_as(client: SimClient, place: TopicPartition) -> TopicPartition:
    """The name of a partition of the topic in the client's metadata, which may be stale. Raises Unanswered."""
    in_use = len((await client.topic(TOPIC)).partitions)
    return place if place[1] < in_use else (RETIRED, TOTAL - 1 - place[1])


class FewerPartitions(Actor):
    """Writes to all partitions with metadata that may be stale, reads and commits them under their current names."""

    name = "fewer"
    odds = 0.2
    checks = "topics with retired partitions"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.grace_s = Random(f"fewer {run.setup.seed}").choice(GRACES_S)
        self.retired_at_s: dict[int, float] = {}
        """When each partition may have been retired for the first time."""

    def preparations(self, founder: SimClient) -> list[Preparation]:
        configs = {"internal.segment.bytes": "2000"}
        if self.run.setup.replicas == REPLICAS_MAX:
            configs["min.insync.replicas"] = "2"
        topic = TopicSetup(TOPIC, TOTAL, self.run.setup.replicas, configs)
        return [(TOPIC, partial(create_topic, founder, topic))]

    def start(self) -> None:
        run = self.run
        client = run.client("resizer")
        run.start(client, Resizer(client, self))
        for number in range(2):
            client = run.client(f"stale writer {number}")
            run.start(client, StaleWriter(client, self, pace_s=run.pace_s))
        client = run.client("resized consumer")
        run.start(client, ResizedConsumer(client, pace_s=run.pace_s))
        client = run.client("resized committer")
        run.start(client, Committer(client, pace_s=run.pace_s))

    async def check(self, auditor: SimClient) -> None:
        await auditor.refresh()
        reader = ResizedConsumer(auditor, pace_s=0.0)
        await reader.read_everything()
        history = self.run.history
        for place in PLACES:
            ledger = history.ledger(place)
            acknowledged = [
                sent for sent in ledger.sent.values() if sent.is_acked and sent.acks in self.run.setup.survives
            ]
            found = dict(reader.found(place))
            for sent in acknowledged:
                if sent.offset >= 0 and found.get(sent.offset) != sent.value:
                    history.breach(
                        f"{sent.value!r} was acknowledged at {sent.offset} of {place}, and cannot be read there"
                    )
            history.count("read from resized topics", len(found))


class Resizer:
    """Changes the number of partitions in use."""

    def __init__(self, client: SimClient, actor: FewerPartitions) -> None:
        self._client = client
        self._actor = actor

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            try:
                await client.nap(PACE_S)
                in_use = client.random.randint(1, TOTAL)
                for index in range(in_use, TOTAL):
                    self._actor.retired_at_s.setdefault(index, client.loop.time())
                await self._resize(in_use)
                client.note(f"has resized {TOPIC} to {in_use}")
                client.succeeded()
            except (Unanswered, Refused) as failed:
                client.note(f"cannot resize {TOPIC}: {failed}")

    async def _resize(self, in_use: int) -> None:
        """Raises Unanswered, Refused."""
        client, values = self._client, ((IN_USE, in_use), (GRACE, round(self._actor.grace_s * 1000)))
        wanted = [rpc.AlterableConfig(name=name, value=str(value)) for name, value in values]
        row = rpc.AlterConfigsResource(resource_type=ResourceType.TOPIC, resource_name=TOPIC, configs=wanted)
        request = rpc.Request(resources=[row])
        told = await client.ask(client.any_broker(), "IncrementalAlterConfigs", request, limit_s=ADMIN_LIMIT_S)
        if told.responses[0].error_code:
            raise Refused(told.responses[0].error_code)
        client.history.count("resized topics")


class StaleWriter(ShareWriter):
    """Writes to all partitions that its metadata has, and refreshes the metadata only after an error. During the grace
    period, no partition may be refused as unknown."""

    def __init__(self, client: SimClient, actor: FewerPartitions, *, pace_s: float) -> None:
        super().__init__(client, PLACES, pace_s=pace_s)
        self._stale = client
        self._actor = actor

    async def write(self, place: TopicPartition, count: int) -> None:
        index, client = place[1], self._stale
        if index >= len((await client.topic(TOPIC)).partitions):
            if client.random.random() < 0.5:
                client.forget_topic(TOPIC)
            return
        try:
            await super().write(place, count)
        except Refused as refused:
            ends_s = self._actor.retired_at_s.get(index, client.loop.time()) + self._actor.grace_s
            if refused.code == UNKNOWN and client.loop.time() < ends_s:
                client.history.breach(f"{TOPIC}-{index} was refused as unknown before its grace period has ended")
            raise
        if self._actor.retired_at_s.get(index) is not None:
            client.history.count("writes to partitions that were retired once")


class ResizedConsumer(Consumer):
    """Reads every partition of the topic, under the name that it has in the client's metadata."""

    def __init__(self, client: SimClient, *, pace_s: float) -> None:
        super().__init__(client, [], max_wait_ms=100, pace_s=pace_s)
        self._reading = client
        self._pauses_s = pace_s

    def kept(self, place: TopicPartition) -> TopicPartition:
        return place if place[0] == TOPIC else (TOPIC, TOTAL - 1 - place[1])

    async def run(self) -> None:
        client = self._reading
        while not client.stopping:
            try:
                for place in PLACES:
                    await self.fetch(self._begun(await shown_as(client, place)))
                client.succeeded()
            except (Unanswered, Refused) as failed:
                client.note(f"cannot read {TOPIC}: {failed}")
                client.forget_topic(TOPIC)
                client.forget_topic(RETIRED)
            await client.nap(self._pauses_s + 0.5)

    async def read_everything(self) -> None:
        """Read all partitions from their beginning to their end. Raises Unanswered, Refused."""
        in_use = len(await partitions_of(self._reading, TOPIC))
        for place in PLACES:
            shown = await shown_as(self._reading, place)
            if place[1] >= in_use and RETIRED not in {topic.name for topic in (await self._reading.refresh()).topics}:
                continue  # the retired partitions are said to be empty
            self._begun(shown)
            end = await latest_offset(self._reading, shown)
            while self.positions[shown] < end:
                await self.fetch(shown)

    def _begun(self, shown: TopicPartition) -> TopicPartition:
        self.positions.setdefault(shown, 0)
        self.got.setdefault(shown, [])
        return shown

    def found(self, place: TopicPartition) -> list[tuple[int, bytes]]:
        """Offsets and values of a partition of the topic, under all its names."""
        return [each for shown, got in self.got.items() if self.kept(shown) == place for each in got]


class Committer:
    """Commits rising offsets for every partition, and fetches them, under the names in its metadata."""

    def __init__(self, client: SimClient, *, pace_s: float) -> None:
        self._client = client
        self._pace_s = pace_s

    async def run(self) -> None:
        client = self._client
        membership = ResizedMembership(client, GROUP)
        while not client.stopping:
            place = client.random.choice(PLACES)
            try:
                if client.random.random() < 0.5:
                    client.forget_topic(TOPIC)
                await membership.commit(place, 1)
                if client.random.random() < 0.5:
                    client.forget_topic(TOPIC)
                await membership.fetch(place)
                client.succeeded()
            except (Unanswered, Refused) as failed:
                client.note(f"cannot commit for {place}: {failed}")
                client.forget_coordinator(GROUP)
                client.forget_topic(TOPIC)
                client.forget_topic(RETIRED)
            await client.nap(self._pace_s + 0.5)


class ResizedMembership(ClassicMembership):
    """The requests of a client that commits for the topic."""

    async def shown(self, place: TopicPartition) -> TopicPartition:
        return await shown_as(self._client, place)

    async def is_outdated(self, node_id: int, place: TopicPartition, shown: TopicPartition) -> bool:
        """Also if the partition had another name already: nobody can read it under the former one."""
        if await super().is_outdated(node_id, place, shown):
            return True
        await partitions_of(self._client, TOPIC)
        return await shown_as(self._client, place) != shown
