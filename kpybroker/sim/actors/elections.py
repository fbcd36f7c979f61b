"""Elections that somebody asks for (ElectLeaders, KIP-460): preferred ones anywhere, unclean ones of a topic apart."""

from __future__ import annotations

from functools import partial

from kpybroker.errors import ErrorCode
from kpybroker.sim.actors.actor import Actor, Preparation
from kpybroker.sim.actors.requests import partitions_of, produced
from kpybroker.sim.clients.client import Client, Refused, Unanswered
from kpybroker.sim.clients.topic_admin import ADMIN_LIMIT_S, create_topic
from kpybroker.sim.cluster.setup import Setup, TopicSetup
from kpybroker.sim.world.history import Place
from kpybroker.wire.records.batch import encode_batch
from kpybroker.wire.rpc import elect_leaders

PREFERRED, UNCLEAN = 0, 1
APART: Place = ("apart", 0)
"""What it has may be lost: nobody else writes to it."""
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


async def elect(client: Client, kind: int, place: Place | None) -> list[int]:
    """The error codes of one partition, or of all that needed an election. Raises Unanswered, Refused."""
    topics = None if place is None else [elect_leaders.TopicPartitions(topic=place[0], partitions=[place[1]])]
    request = elect_leaders.Request(election_type=kind, topic_partitions=topics, timeout_ms=5000)
    told = await client.ask(client.any_broker(), "ElectLeaders", request, limit_s=ADMIN_LIMIT_S)
    if told.error_code:
        raise Refused(told.error_code)
    return [row.error_code for topic in told.replica_election_results for row in topic.partition_result]


class Elections(Actor):
    """At rest every partition can be led by its first replica, and is after an election."""

    name = "elections"
    odds = 0.12
    checks = "the leaders after an election of preferred ones"

    @classmethod
    def suits(cls, setup: Setup) -> bool:
        return len(setup.nodes) > 1

    def preparations(self, founder: Client) -> list[Preparation]:
        topic = TopicSetup(APART[0], 1, self.run.setup.replicas, {"internal.segment.bytes": "900"})
        return [(topic.name, partial(create_topic, founder, topic))]

    def start(self) -> None:
        run = self.run
        client = run.client("elector")
        run.start(client, Elector(client, list(run.worked)))
        client = run.client("apart")
        run.start(client, Writer(client, pace_s=run.pace_s))

    async def check(self, auditor: Client) -> None:
        if any(code not in NOT_NOW for code in await elect(auditor, UNCLEAN, APART)):
            auditor.note(f"{APART[0]} had no leader")
        if wrong := [code for code in await elect(auditor, PREFERRED, None) if code not in (0, NOT_NEEDED)]:
            raise Refused(wrong[0])
        for name in sorted({name for name, _ in self.run.worked} | {APART[0]}):
            for index, row in (await partitions_of(auditor, name)).items():
                if row.leader_id != row.replica_nodes[0]:
                    raise Unanswered(f"node {row.leader_id} leads {name}-{index}, of {row.replica_nodes}")


class Elector:
    """Asks for elections."""

    def __init__(self, client: Client, places: list[Place]) -> None:
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
                client.history.count("elections asked for", codes.count(0))
                client.note(f"elects {'all' if place is None else place}: {codes}")
                client.succeeded()
                await client.nap(PACE_S)
            except (Unanswered, Refused) as failed:
                client.note(f"does not know of an election: {failed}")
                await client.nap(1.0)


class Writer:
    """Keeps the topic apart from being empty."""

    def __init__(self, client: Client, *, pace_s: float) -> None:
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
