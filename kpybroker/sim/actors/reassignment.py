"""AlterPartitionReassignments with throttles and cancellations (KIP-455, KIP-73)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from kpybroker.config.resource_type import ResourceType
from kpybroker.errors import ErrorCode
from kpybroker.sim.actors.actor import Actor, Preparation
from kpybroker.sim.actors.requests import partitions_of
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.topic_admin import ADMIN_LIMIT_S, alter_config
from kpybroker.sim.cluster.setup import Setup
from kpybroker.topics import TopicPartition
from kpybroker.wire.rpc import alter_partition_reassignments, list_partition_reassignments

RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
SLOW_BYTES_S, UNLIMITED_BYTES_S = (300, 2000), 1_000_000_000
CANCEL_ODDS = 0.3
THROTTLE_ODDS = 0.2
NOTHING_TO_CANCEL = int(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
REFUSALS = frozenset({NOTHING_TO_CANCEL, int(ErrorCode.INVALID_REPLICA_ASSIGNMENT)})
"""Errors after which nothing has changed. After any other error, the change may still happen."""
Replicas = frozenset[int]


@dataclass
class Whereabouts:
    """The sets of replicas that a partition may have at the end."""

    may_be: set[Replicas]
    origins: set[Replicas] = field(default_factory=set)
    """The sets of replicas that a cancellation may restore."""
    doubtful: set[Replicas] = field(default_factory=set)
    """Targets of requests without a response, which may take effect at any time."""
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
    """Runs the client. Topics have one or two replicas, so that there are other brokers to move them to."""

    name = "reassignment"
    odds = 0.15
    checks = "the replicas after reassignments"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.places = list(run.writable)
        self.whereabouts: dict[TopicPartition, Whereabouts] = {}

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

    def preparations(self, founder: SimClient) -> list[Preparation]:
        topics = sorted({name for name, _ in self.places})
        return [
            (f"{key} of {topic}", partial(alter_config, founder, ResourceType.TOPIC, topic, key, "*"))
            for topic in topics
            for key in REPLICAS
        ]

    def start(self) -> None:
        client = self.run.client("mover")
        nodes = [node.node_id for node in self.run.setup.nodes]
        self.run.start(client, Mover(client, self.places, nodes, self.whereabouts))

    async def check(self, auditor: SimClient) -> None:
        """Check that no reassignment is ongoing, that each partition has requested replicas, all in sync, and that no
        other broker has its log."""
        history = self.run.history
        request = list_partition_reassignments.Request()
        response = await auditor.ask(auditor.any_broker(), "ListPartitionReassignments", request)
        if response.error_code:
            raise Refused(response.error_code)
        if response.topics:
            raise Unanswered(f"{response.topics[0].name} is being moved: {response.topics[0].partitions}")
        for place, where in self.whereabouts.items():
            name, index = place
            row = (await partitions_of(auditor, name))[index]
            replicas = frozenset(row.replica_nodes)
            if set(row.isr_nodes) != replicas:
                raise Unanswered(f"{name}-{index} has replicas {row.replica_nodes}, but ISR {row.isr_nodes}")
            if replicas not in where.allowed:
                allowed = sorted(sorted(each) for each in where.allowed)
                history.breach(f"{name}-{index} has replicas {sorted(replicas)}, but requested were {allowed}")
            for machine in self.run.machines:
                hosted = (
                    machine.node is not None and machine.node.broker.replication.hosting.find(name, index) is not None
                )
                if hosted and machine.setup.node_id not in replicas:
                    raise Unanswered(f"{machine.name} has a log of {name}-{index}, but is not among its replicas")

    def look(self) -> None:
        for machine in self.run.machines:
            if machine.node is None:
                continue
            for topic in machine.node.broker.metadata.image.topics.values():
                for index, one in enumerate(topic.partitions):
                    if not {*one.isr, *one.adding_replicas, *one.removing_replicas} <= set(one.replicas):
                        self.run.history.breach(f"{topic.name}-{index} is {one}")


class Mover:
    """Reassigns partitions, cancels reassignments, and changes throttles."""

    def __init__(
        self,
        client: SimClient,
        places: list[TopicPartition],
        nodes: list[int],
        whereabouts: dict[TopicPartition, Whereabouts],
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
                client.note(f"does not know the replicas of {place}: {failed}")
                client.forget_topic(place[0])
                await client.nap(1.0)
        await self._let_go()

    async def _let_go(self) -> None:
        """Remove the throttle, so that every reassignment can complete."""
        while True:
            try:
                await self._throttle(UNLIMITED_BYTES_S)
                return
            except (Unanswered, Refused) as failed:
                self._client.note(f"cannot lift the throttle: {failed}")
                await self._client.nap(1.0)

    async def _throttle(self, bytes_s: int) -> None:
        for key in RATES:
            await alter_config(self._client, ResourceType.BROKER, "", key, str(bytes_s))

    async def _alter(self, place: TopicPartition, target: list[int] | None) -> None:
        """Send AlterPartitionReassignments for one partition. Raises Unanswered, Refused."""
        client, (name, index) = self._client, place
        where = self._whereabouts.get(place)
        if where is None:
            row = (await partitions_of(client, name))[index]
            where = self._whereabouts[place] = Whereabouts({frozenset(row.replica_nodes)})
        asked = alter_partition_reassignments.ReassignablePartition(partition_index=index, replicas=target)
        topic = alter_partition_reassignments.ReassignableTopic(name=name, partitions=[asked])
        request = alter_partition_reassignments.Request(timeout_ms=5000, topics=[topic])
        try:
            response = await client.ask(
                client.any_broker(), "AlterPartitionReassignments", request, limit_s=ADMIN_LIMIT_S
            )
            code = response.error_code or response.responses[0].partitions[0].error_code
            if code and code not in REFUSALS:
                raise Refused(code)
        except (Unanswered, Refused):
            if target is None:
                where.doubtful_cancel = True
            else:
                where.doubtful.add(frozenset(target))
            raise
        if code:
            client.note(f"{place} does not change: {ErrorCode(code).name}")
            return
        if target is None:
            where.cancelled()
            client.history.count("reassignments cancelled")
        else:
            where.moves(frozenset(target))
            client.history.count("reassignments")
        client.note(f"reassigned {place} to {target}")
