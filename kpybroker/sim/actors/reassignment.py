"""Partitions that are given other replicas, with throttles and cancels (KIP-455, KIP-73)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from kpybroker.errors import ErrorCode
from kpybroker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE
from kpybroker.sim.actors.actor import Actor, Preparation
from kpybroker.sim.actors.requests import partitions_of
from kpybroker.sim.clients.client import Client, Refused, Unanswered
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.topic_admin import ADMIN_LIMIT_S, alter_config
from kpybroker.sim.cluster.setup import Setup
from kpybroker.sim.world.history import Place
from kpybroker.wire.rpc import alter_partition_reassignments, list_partition_reassignments

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
SLOW_BYTES_S, UNLIMITED_BYTES_S = (300, 2000), 1_000_000_000
CANCEL_ODDS = 0.3
THROTTLE_ODDS = 0.2
NOTHING_TO_CANCEL = int(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
REFUSALS = frozenset({NOTHING_TO_CANCEL, int(ErrorCode.INVALID_REPLICA_ASSIGNMENT)})
"""Nothing was changed. After any other error it may be done yet."""
Replicas = frozenset[int]


@dataclass
class Whereabouts:
    """The sets of replicas that a partition may have in the end."""

    may_be: set[Replicas]
    origins: set[Replicas] = field(default_factory=set)
    """Where a cancel leads to."""
    doubtful: set[Replicas] = field(default_factory=set)
    """Asked for without an answer: it may be done at any time."""
    doubtful_cancel: bool = False

    def moves(self, target: Replicas) -> None:
        self.origins |= self.may_be
        self.may_be = {target}

    def cancelled(self) -> None:
        may_have_been_settled = self.doubtful or self.doubtful_cancel
        self.may_be = self.origins | self.may_be if may_have_been_settled else set(self.origins)

    @property
    def allowed(self) -> set[Replicas]:
        return self.may_be | self.doubtful | (self.origins if self.doubtful_cancel or self.doubtful else set())


class Reassignments(Actor):
    """Topics have one or two replicas, so that there are brokers to move them to."""

    name = "reassignment"
    odds = 0.15
    checks = "where replicas are after they were reassigned"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.places = list(run.worked)
        self.whereabouts: dict[Place, Whereabouts] = {}

    @classmethod
    def suits(cls, setup: Setup) -> bool:
        return len(setup.nodes) > 2 and (setup.outlives_power or "power_loss" not in setup.faults)

    @classmethod
    def draw(cls, setup: Setup, random: Random) -> Setup:
        fewer = {
            topic.name: replace(
                topic, replicas=random.choice((1, 2, 2)), configs={**topic.configs, "min.insync.replicas": "1"}
            )
            for topic in setup.topics
        }
        return replace(setup, topics=tuple(fewer.values()))

    def preparations(self, founder: Client) -> list[Preparation]:
        topics = sorted({name for name, _ in self.places})
        return [
            (f"{key} of {topic}", partial(alter_config, founder, TOPIC_RESOURCE, topic, key, "*"))
            for topic in topics
            for key in REPLICAS
        ]

    def start(self) -> None:
        client = self.run.client("mover")
        nodes = [node.node_id for node in self.run.setup.nodes]
        self.run.start(client, Mover(client, self.places, nodes, self.whereabouts))

    async def check(self, auditor: Client) -> None:
        """No move is under way; a partition has replicas that were asked for, all in sync, and nobody else has it."""
        history = self.run.history
        request = list_partition_reassignments.Request()
        told = await auditor.ask(auditor.any_broker(), "ListPartitionReassignments", request)
        if told.error_code:
            raise Refused(told.error_code)
        if told.topics:
            raise Unanswered(f"{told.topics[0].name} is being moved: {told.topics[0].partitions}")
        for place, where in self.whereabouts.items():
            name, index = place
            row = (await partitions_of(auditor, name))[index]
            replicas = frozenset(row.replica_nodes)
            if set(row.isr_nodes) != replicas:
                raise Unanswered(f"{name}-{index} has replicas {row.replica_nodes}, in sync are {row.isr_nodes}")
            if replicas not in where.allowed:
                allowed = sorted(sorted(each) for each in where.allowed)
                history.breach(f"{name}-{index} has replicas {sorted(replicas)}; asked for were {allowed}")
            for machine in self.run.machines:
                hosted = (
                    machine.node is not None and machine.node.broker.replication.hosting.find(name, index) is not None
                )
                if hosted and machine.setup.node_id not in replicas:
                    raise Unanswered(f"{machine.name} has {name}-{index}, and is no replica of it")

    def look(self) -> None:
        for machine in self.run.machines:
            if machine.node is None:
                continue
            for topic in machine.node.broker.metadata.image.topics.values():
                for index, one in enumerate(topic.partitions):
                    if not {*one.isr, *one.adding_replicas, *one.removing_replicas} <= set(one.replicas):
                        self.run.history.breach(f"{topic.name}-{index} is {one}")


class Mover:
    """Asks for other replicas, calls moves off, and lets throttles come and go."""

    def __init__(
        self, client: Client, places: list[Place], nodes: list[int], whereabouts: dict[Place, Whereabouts]
    ) -> None:
        self._client = client
        self._places = places
        self._nodes = nodes
        self._whereabouts = whereabouts

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            place = client.random.choice(self._places)
            try:
                if client.random.random() < THROTTLE_ODDS:
                    await self._throttle(client.random.choice((*SLOW_BYTES_S, UNLIMITED_BYTES_S)))
                elif client.random.random() < CANCEL_ODDS:
                    await self._alter(place, None)
                else:
                    size = client.random.choice((1, 2, 2, 3)) if len(self._nodes) > 2 else 1
                    await self._alter(place, client.random.sample(self._nodes, size))
                client.succeeded()
                await client.nap(4.0)
            except (Unanswered, Refused) as failed:
                client.note(f"does not know of the replicas of {place}: {failed}")
                client.forget_topic(place[0])
                await client.nap(1.0)
        await self._let_go()

    async def _let_go(self) -> None:
        """No throttle is left: every move must end."""
        while True:
            try:
                await self._throttle(UNLIMITED_BYTES_S)
                return
            except (Unanswered, Refused) as failed:
                self._client.note(f"cannot lift the throttle: {failed}")
                await self._client.nap(1.0)

    async def _throttle(self, bytes_s: int) -> None:
        for key in RATES:
            await alter_config(self._client, BROKER_RESOURCE, "", key, str(bytes_s))

    async def _alter(self, place: Place, target: list[int] | None) -> None:
        """Raises Unanswered, Refused."""
        client, (name, index) = self._client, place
        where = self._whereabouts.get(place)
        if where is None:
            row = (await partitions_of(client, name))[index]
            where = self._whereabouts[place] = Whereabouts({frozenset(row.replica_nodes)})
        asked = alter_partition_reassignments.ReassignablePartition(partition_index=index, replicas=target)
        topic = alter_partition_reassignments.ReassignableTopic(name=name, partitions=[asked])
        request = alter_partition_reassignments.Request(timeout_ms=5000, topics=[topic])
        try:
            told = await client.ask(client.any_broker(), "AlterPartitionReassignments", request, limit_s=ADMIN_LIMIT_S)
            code = told.error_code or told.responses[0].partitions[0].error_code
            if code and code not in REFUSALS:
                raise Refused(code)
        except (Unanswered, Refused):
            if target is None:
                where.doubtful_cancel = True
            else:
                where.doubtful.add(frozenset(target))
            raise
        if code:
            client.note(f"{place} stays as it is: {ErrorCode(code).name}")
            return
        if target is None:
            where.cancelled()
            client.history.count("moves called off")
        else:
            where.moves(frozenset(target))
            client.history.count("moves of replicas")
        client.note(f"{place} is to have {target}")
