"""A streams group (KIP-1071): its members, a client that describes it, and its internal topics."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from random import Random

from kpybroker.config.resource_type import ResourceType
from kpybroker.sim.actors.actor import Actor, Preparation
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.streams_members import StreamsGroupMember, describe
from kpybroker.sim.clients.topic_admin import create_topic
from kpybroker.sim.cluster.setup import REPLICAS_MAX, Setup, TopicSetup
from kpybroker.sim.laws.streams_law import StreamsLaw, Task, tasks_of
from kpybroker.wire.rpc import describe_configs
from kpybroker.wire.rpc.streams_group_describe import DescribedGroup
from kpybroker.wire.rpc.streams_group_heartbeat import KeyValue, Subtopology, TopicInfo, Topology

GROUP, TOPIC = "streams", "events"
REPARTITION, CHANGELOGS = "streams-by-key-repartition", ("streams-seen-changelog", "streams-counts-changelog")
FIRST, SECOND = "0", "1"
SESSION_MS = 6000
REST_LIMIT_S = 60.0
STANDBYS = "group.streams.num.standby.replicas"


class StreamsGroups(Actor):
    """Runs the members of an application with two subtopologies, of which the first writes what the second reads. At
    rest, every task has one owner, and the internal topics have the partitions and settings of the topology."""

    name = "streams"
    odds = 0.25
    checks = "the streams group and its internal topics"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        random = Random(f"streams group {run.setup.seed}")
        self._partitions = random.choice((1, 2, 3))
        self._members_count = random.choice((2, 3, 4))
        self._per_process = random.choice((1, 1, 2))
        self._standbys = int(run.setup.nodes[0].properties[STANDBYS])
        self._law = StreamsLaw(run.history, GROUP, SESSION_MS / 1000)
        self._members: list[StreamsGroupMember] = []
        self._sources = {FIRST: TOPIC, SECOND: REPARTITION}

    @classmethod
    def draw(cls, setup: Setup, random: Random) -> Setup:
        properties = {
            "group.streams.min.session.timeout.ms": "1000",
            "group.streams.session.timeout.ms": str(SESSION_MS),
            "group.streams.min.heartbeat.interval.ms": "100",
            "group.streams.heartbeat.interval.ms": "500",
            "group.streams.assignment.interval.ms": random.choice(("0", "1000")),
            "group.streams.initial.rebalance.delay.ms": random.choice(("0", "1000")),
            STANDBYS: random.choice(("0", "1", "1")),
        }
        nodes = tuple(replace(node, properties={**node.properties, **properties}) for node in setup.nodes)
        return replace(setup, nodes=nodes)

    def _topology(self) -> Topology:
        replicas = self.run.setup.replicas

        def internal(name: str, policy: str) -> TopicInfo:
            configs = [KeyValue(key="cleanup.policy", value=policy)]
            return TopicInfo(name=name, partitions=0, replication_factor=replicas, topic_configs=configs)

        return Topology(
            epoch=1,
            subtopologies=[
                Subtopology(
                    subtopology_id=FIRST,
                    source_topics=[TOPIC],
                    repartition_sink_topics=[REPARTITION],
                    state_changelog_topics=[internal(CHANGELOGS[0], "compact")],
                ),
                Subtopology(
                    subtopology_id=SECOND,
                    repartition_source_topics=[internal(REPARTITION, "delete")],
                    state_changelog_topics=[internal(CHANGELOGS[1], "compact")],
                ),
            ],
        )

    # ---- the run

    def preparations(self, founder: SimClient) -> list[Preparation]:
        replicas = self.run.setup.replicas
        configs = {"min.insync.replicas": "2"} if replicas == REPLICAS_MAX else {}
        return [(TOPIC, partial(create_topic, founder, TopicSetup(TOPIC, self._partitions, replicas, configs)))]

    def start(self) -> None:
        run = self.run
        for number in range(self._members_count):
            client = run.client(f"streams member {number}")
            member = StreamsGroupMember(
                client,
                GROUP,
                f"process-{number // self._per_process}",
                self._topology(),
                self._sources,
                self._law,
                pace_s=min(run.pace_s, 0.5),
            )
            self._members.append(member)
            run.start(client, member)
        client = run.client("streams looker")
        run.start(client, Looker(client, self._law, pace_s=4 * run.pace_s))

    async def rest(self) -> bool:
        """Wait until every task has its owner, its standby tasks, and no more."""
        run = self.run
        for member in self._members:
            member.settle()
        client = run.client("streams finisher")
        with run.loop.acting(client.owner):
            waiting = run.loop.create_task(self._wait(client))
        left = await waiting
        if left:
            run.history.breach(f"{left} {REST_LIMIT_S:.0f} s after all faults were repaired")
        return not left

    async def _wait(self, client: SimClient) -> str:
        deadline, left = self.run.loop.time() + REST_LIMIT_S, "the streams group could not be described"
        while self.run.loop.time() < deadline:
            try:
                left = self._left(await describe(client, GROUP, self._law))
            except (Unanswered, Refused) as failed:
                client.note(f"cannot describe the streams group: {failed}")
            if not left:
                return ""
            await asyncio.sleep(0.5)
        return left

    def _left(self, shown: DescribedGroup) -> str:
        """What the group still has to do; empty if it has come to rest."""
        if shown.group_state != "Stable" or len(shown.members) != len(self._members):
            return f"the streams group is {shown.group_state} with {len(shown.members)} members"
        active = sorted(task for each in shown.members for task in tasks_of(each.assignment.active_tasks))
        standby = sorted(task for each in shown.members for task in tasks_of(each.assignment.standby_tasks))
        tasks = sorted((name, index) for name in self._sources for index in range(self._partitions))
        processes = len({each.process_id for each in shown.members})
        copies = sorted(tasks * min(self._standbys, processes - 1))
        if active != tasks or standby != copies:
            return f"the streams group has the active tasks {active} and the standby tasks {standby}"
        owned: list[Task] = sorted(task for member in self._members for task in member.active)
        return "" if owned == tasks else f"the members of the streams group have the tasks {owned}"

    # ---- the end

    async def check(self, auditor: SimClient) -> None:
        """Raises Unanswered, Refused."""
        await describe(auditor, GROUP, self._law)
        for name, policy in ((REPARTITION, "delete"), *((each, "compact") for each in CHANGELOGS)):
            auditor.forget_topic(name)
            partitions = len((await auditor.topic(name)).partitions)
            if partitions != self._partitions:
                self.run.history.breach(f"{name} has {partitions} partitions, not {self._partitions}")
            found = await _cleanup_policy(auditor, name)
            if found != policy:
                self.run.history.breach(f"{name} has cleanup.policy={found}, not {policy}")


class Looker:
    """Describes the group again and again."""

    def __init__(self, client: SimClient, law: StreamsLaw, *, pace_s: float) -> None:
        self._client = client
        self._law = law
        self._pace_s = pace_s

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            try:
                await describe(client, GROUP, self._law)
                client.succeeded()
                await client.nap(self._pace_s)
            except (Unanswered, Refused) as failed:
                client.note(f"cannot describe the streams group: {failed}")
                client.forget_coordinator(GROUP)
                await client.nap(0.5)


async def _cleanup_policy(client: SimClient, topic: str) -> str | None:
    """Raises Unanswered, Refused."""
    resource = describe_configs.DescribeConfigsResource(
        resource_type=ResourceType.TOPIC, resource_name=topic, configuration_keys=["cleanup.policy"]
    )
    request = describe_configs.Request(resources=[resource])
    response = await client.ask(client.any_broker(), "DescribeConfigs", request)
    [result] = response.results
    if result.error_code:
        raise Refused(result.error_code)
    return next((row.value for row in result.configs), None)
