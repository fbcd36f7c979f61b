"""ElectLeaders (KIP-460): preferred elections of any partition, and unclean elections on a separate topic."""

from __future__ import annotations

from functools import partial

from kpybroker.errors import ErrorCode
from kpybroker.sim.actors.actor import Actor, Preparation
from kpybroker.sim.actors.requests import partitions_of, produced
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.topic_admin import ADMIN_LIMIT_S, create_topic
from kpybroker.sim.cluster.setup import Setup, TopicSetup
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import elect_leaders

PREFERRED, UNCLEAN = 0, 1
APART: TopicPartition = ("apart", 0)
"""The topic of unclean elections. Only this actor writes to it, so its records may be lost."""
UNCLEAN_ODDS, ALL_ODDS = 0.4, 0.3
PACE_S = 3.0
NOT_NEEDED = int(ErrorCode.ELECTION_NOT_NEEDED)
NOT_NOW = frozenset(
    {
        NOT_NEEDED,
        int(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        int(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    }
)


async def elect(client: SimClient, kind: int, place: TopicPartition | None) -> list[int]:
    """Send ElectLeaders for one partition or all. Returns the error codes of the partitions in the response. Raises
    Unanswered, Refused."""
    topics = None if place is None else [elect_leaders.TopicPartitions(topic=place[0], partitions=[place[1]])]
    request = elect_leaders.Request(election_type=kind, topic_partitions=topics, timeout_ms=5000)
    response = await client.ask(client.any_broker(), "ElectLeaders", request, limit_s=ADMIN_LIMIT_S)
    if response.error_code:
        raise Refused(response.error_code)
    return [row.error_code for topic in response.replica_election_results for row in topic.partition_result]


class Elections(Actor):
    """Checks that a preferred election makes the first replica of every partition its leader, once the cluster has
    settled."""

    name = "elections"
    odds = 0.11
    checks = "the leaders after a preferred election"

    @classmethod
    def suits(cls, setup: Setup) -> bool:
        return len(setup.nodes) > 1

    def preparations(self, founder: SimClient) -> list[Preparation]:
        topic = TopicSetup(APART[0], 1, self.run.setup.replicas, {"internal.segment.bytes": "900"})
        return [(topic.name, partial(create_topic, founder, topic))]

    def start(self) -> None:
        run = self.run
        client = run.client("elector")
        run.start(client, Elector(client, list(run.writable)))
        client = run.client("apart")
        run.start(client, Writer(client, pace_s=run.pace_s))

    async def check(self, auditor: SimClient) -> None:
        if any(code not in NOT_NOW for code in await elect(auditor, UNCLEAN, APART)):
            auditor.note(f"{APART[0]} had no leader")
        if wrong := [code for code in await elect(auditor, PREFERRED, None) if code not in (0, NOT_NEEDED)]:
            raise Refused(wrong[0])
        for name in sorted({name for name, _ in self.run.writable} | {APART[0]}):
            for index, row in (await partitions_of(auditor, name)).items():
                if row.leader_id != row.replica_nodes[0]:
                    raise Unanswered(f"node {row.leader_id} leads {name}-{index}, of {row.replica_nodes}")


class Elector:
    """Sends ElectLeaders repeatedly."""

    def __init__(self, client: SimClient, places: list[TopicPartition]) -> None:
        self._client = client
        self._places = places

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            kind, place = PREFERRED, client.random.choice((None, client.random.choice(self._places)))
            if client.random.random() < UNCLEAN_ODDS:
                kind, place = UNCLEAN, APART
            try:
                codes = await elect(client, kind, place)
                wrong = [code for code in codes if code and code not in NOT_NOW]
                if wrong:
                    raise Refused(wrong[0])
                client.history.count("elections requested", codes.count(0))
                client.note(f"elects {'all' if place is None else place}: {codes}")
                client.succeeded()
                await client.nap(PACE_S)
            except (Unanswered, Refused) as failed:
                client.note(f"does not know the result of an election: {failed}")
                await client.nap(1.0)


class Writer:
    """Writes records to the separate topic."""

    def __init__(self, client: SimClient, *, pace_s: float) -> None:
        self._client = client
        self._pace_s = pace_s
        self._number = 0

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            self._number += 1
            batch = bytes(encode_batch([(None, b"%d" % self._number)], timestamp_ms=client.wall_ms()))
            try:
                await produced(client, APART, batch)
                client.succeeded()
                await client.nap(4 * self._pace_s)
            except (Unanswered, Refused) as failed:
                client.note(f"cannot write to {APART[0]}: {failed}")
                client.forget_topic(APART[0])
                await client.nap(1.0)
