"""A share group (KIP-932): consumers of a few partitions, an admin of its offsets, and the laws that check both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from kpybroker.config.resource_type import ResourceType
from kpybroker.sim.actors.actor import Actor, Preparation
from kpybroker.sim.actors.share_writing import ShareTransactor, ShareWriter
from kpybroker.sim.checks.share_states import ShareStates, check_share_replay
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.consuming import Consumer, latest_offset
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.share_admin import ShareAdmin, described
from kpybroker.sim.clients.share_consuming import ShareConsumer, Stage
from kpybroker.sim.clients.share_sight import ShareSight
from kpybroker.sim.clients.topic_admin import alter_config, create_topic
from kpybroker.sim.cluster.setup import REPLICAS_MAX, Setup, TopicSetup
from kpybroker.sim.laws.share_law import Delivery, ShareLaw
from kpybroker.topics import TopicPartition

GROUP, TOPIC = "share", "delivered"
COMMITTED_ODDS = 0.4
ADMIN_ODDS = 0.6
LATE_ODDS = 0.2
"""The odds that the group begins at the end of the partitions."""
LOOKS_EVERY_S = 0.1
REST_LIMIT_S = 60.0
LIMIT, IN_FLIGHT = "group.share.delivery.count.limit", "group.share.partition.max.record.locks"


class ShareGroups(Actor):
    """Runs a share group, and checks that the group has consumed every record at the end."""

    name = "shares"
    odds = 0.25
    checks = "what the share group has consumed"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        random = Random(f"share group {run.setup.seed}")
        self._indexes = range(random.choice((1, 2, 2, 3)))
        self._consumers = random.choice((2, 3, 4))
        self._is_committed = random.random() < COMMITTED_ODDS
        self._has_admin = random.random() < ADMIN_ODDS
        self._begins_late = random.random() < LATE_ODDS
        self._places: list[TopicPartition] = [(TOPIC, index) for index in self._indexes]
        properties = run.setup.nodes[0].properties
        limit, in_flight = int(properties[LIMIT]), int(properties[IN_FLIGHT])
        self._sight = ShareSight(run.machines, GROUP)
        self._law = ShareLaw(run.history, TOPIC, limit, self._holds)
        if self._begins_late:
            for index in self._indexes:
                self._law.begins_late(index)
        self._states = ShareStates(run.history, self._sight, self._law, limit, in_flight)
        self._stage = Stage()
        self._topic_id = b""
        self._members: list[ShareConsumer] = []
        self._others: list[tuple[SimClient, ShareWriter | ShareAdmin]] = []

    @classmethod
    def draw(cls, setup: Setup, random: Random) -> Setup:
        is_safe = setup.replicas == REPLICAS_MAX
        properties = {
            "share.coordinator.state.topic.num.partitions": random.choice(("1", "3")),
            "share.coordinator.state.topic.replication.factor": str(setup.replicas),
            "share.coordinator.state.topic.min.isr": random.choice(("1", "2")) if is_safe else "1",
            "share.coordinator.state.topic.prune.interval.ms": random.choice(("1000", "300000")),
            "share.coordinator.cold.partition.snapshot.interval.ms": random.choice(("1000", "300000")),
            "share.coordinator.snapshot.update.records.per.snapshot": random.choice(("0", "5", "500")),
            "group.share.min.record.lock.duration.ms": "1000",
            "group.share.record.lock.duration.ms": random.choice(("1000", "3000")),
            LIMIT: random.choice(("2", "5", "5")),
            IN_FLIGHT: random.choice(("100", "2000")),
            "group.share.min.session.timeout.ms": "1000",
            "group.share.session.timeout.ms": "6000",
            "group.share.min.heartbeat.interval.ms": "100",
            "group.share.heartbeat.interval.ms": "500",
            "group.share.assignment.interval.ms": random.choice(("0", "1000")),
        }
        nodes = tuple(replace(node, properties={**node.properties, **properties}) for node in setup.nodes)
        return replace(setup, nodes=nodes)

    def _holds(self, delivery: Delivery, index: int) -> bool:
        """Whether the leader still has the reign and the session of the delivery."""
        sight, node_id = self._sight, delivery.node_id
        return (
            delivery.reign is not None
            and delivery.session is not None
            and sight.reign(node_id, self._topic_id, index) is delivery.reign
            and sight.session(node_id, delivery.member) is delivery.session
        )

    # ---- the run

    def preparations(self, founder: SimClient) -> list[Preparation]:
        """Create the settings of the group before the topic: a broker that has the topic then also has the settings."""
        settings = {"share.auto.offset.reset": "latest" if self._begins_late else "earliest"}
        if self._is_committed:
            settings["share.isolation.level"] = "read_committed"
        replicas = self.run.setup.replicas
        configs = {"internal.segment.bytes": "900"}
        if replicas == REPLICAS_MAX:
            configs["min.insync.replicas"] = "2"
        topic = TopicSetup(TOPIC, len(self._indexes), replicas, configs)
        return [
            *(
                (name, partial(alter_config, founder, ResourceType.GROUP, GROUP, name, value))
                for name, value in settings.items()
            ),
            (TOPIC, partial(create_topic, founder, topic)),
            ("its id", partial(self._identify, founder)),
        ]

    async def _identify(self, founder: SimClient) -> None:
        founder.forget_topic(TOPIC)
        self._topic_id = (await founder.topic(TOPIC)).topic_id

    def start(self) -> None:
        run, pace_s = self.run, self.run.pace_s
        self._begin("share writer", lambda client: ShareWriter(client, self._places, pace_s=pace_s))
        if self._is_committed:
            self._begin("share transactor", lambda client: ShareTransactor(client, self._places, pace_s=pace_s))
        for number in range(self._consumers):
            client = run.client(f"share consumer {number}")
            member = ShareConsumer(
                client,
                GROUP,
                TOPIC,
                self._stage,
                self._law,
                self._sight,
                is_committed=self._is_committed,
                pace_s=min(pace_s, 0.5),
            )
            self._members.append(member)
            run.start(client, member)
        if self._has_admin:
            self._begin(
                "share admin",
                lambda client: ShareAdmin(
                    client,
                    GROUP,
                    TOPIC,
                    self._indexes,
                    self._stage,
                    self._law,
                    self._all_are_out,
                    may_delete=not self._begins_late,
                ),
            )
        self._watching = run.loop.create_task(self._watch())

    def _begin(self, name: str, make: Callable[[SimClient], ShareWriter | ShareAdmin]) -> None:
        client = self.run.client(name)
        work = make(client)
        self._others.append((client, work))
        self.run.start(client, work)

    def _all_are_out(self) -> bool:
        return all(member.is_out for member in self._members)

    async def _watch(self) -> None:
        while True:
            self._states.look(self._topic_id, self._indexes)
            await asyncio.sleep(LOOKS_EVERY_S)

    async def rest(self) -> bool:
        """Stop the writers, write a last record to each partition, and let the consumers drain the rest."""
        run = self.run
        for client, _ in self._others:
            client.stop()
        deadline = run.loop.time() + REST_LIMIT_S
        while not all(work.has_ended for _, work in self._others) and run.loop.time() < deadline:
            await asyncio.sleep(0.2)
        self._stage.drain()
        client = run.client("share finisher")
        with run.loop.acting(client.owner):
            draining = run.loop.create_task(self._drain(client))
        left = await draining
        if left:
            run.history.breach(f"{left} for {REST_LIMIT_S:.0f} s after all faults were repaired")
        return not left

    async def _drain(self, client: SimClient) -> str:
        """Write the last records, and wait until the group has consumed all records or makes no more progress. Returns
        a description of the remaining records, or an empty text."""
        last = ShareWriter(client, self._places, pace_s=0.0)
        to_write, left, known = list(self._places), "", ""
        deadline = self.run.loop.time() + REST_LIMIT_S
        while self.run.loop.time() < deadline:
            try:
                while to_write:
                    await last.write(to_write[-1], 1)
                    to_write.pop()
                left = await self._left(client)
                if not left:
                    return ""
            except (Unanswered, Refused) as failed:
                client.note(f"cannot drain the share group: {failed}")
                left = left or "the share group could not be described"
            if left != known:
                known, deadline = left, self.run.loop.time() + REST_LIMIT_S
            await asyncio.sleep(0.5)
        return left

    async def _left(self, client: SimClient, ends: dict[int, int] | None = None) -> str:
        """Raises Unanswered, Refused. ends: how many offsets without records end each partition, as transactions may
        have ended since the members stopped."""
        rows = await described(client, GROUP, TOPIC)
        lags = {index: rows[index].lag if index in rows else -1 for index in self._indexes}
        is_done = all(0 <= lag <= (ends or {}).get(index, 0) for index, lag in lags.items())
        return "" if is_done else f"the share group lags behind by {lags}"

    # ---- the end

    async def check(self, auditor: SimClient) -> None:
        """Raises Unanswered, Refused."""
        ends = {}
        for place in self._places:
            auditor.forget_topic(TOPIC)
            consumer = Consumer(auditor, [place], max_wait_ms=100, pace_s=0.0, committed=self._is_committed)
            await consumer.read_to_the_end()
            got = consumer.got[place]
            self._law.check_end(place[1], got, committed=self._is_committed)
            ends[place[1]] = await latest_offset(auditor, place) - (got[-1][0] + 1 if got else 0)
        if left := await self._left(auditor, ends):
            raise Unanswered(left)

    def look(self) -> None:
        self._watching.cancel()
        self._law.check_counts()
        for machine in self.run.machines:
            check_share_replay(machine, self.run.history)
