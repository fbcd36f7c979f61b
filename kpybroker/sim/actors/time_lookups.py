"""Checks ListOffsets by time against the timestamps of acknowledged records (KIP-33, KIP-734, KIP-405)."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import NamedTuple

from kpybroker.sim.actors.actor import Actor, Preparation
from kpybroker.sim.actors.requests import offset_by_time, produced
from kpybroker.sim.clients.client import Refused, SimClient, Unanswered
from kpybroker.sim.clients.consuming import Consumer, latest_offset
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.topic_admin import create_topic
from kpybroker.sim.cluster.setup import TopicSetup
from kpybroker.sim.world.history import Sent
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import Record, encode_batch

PLACE: TopicPartition = ("times", 0)
MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -3, -4, -5
SPREAD_MS = 5000
"""The greatest age of the timestamps of records."""
SLOWS_AFTER = 40
CODECS = (0, 0, 1, 2, 3, 4)


class Stamped(NamedTuple):
    """An acknowledged record."""

    epoch: int
    """The epoch of the leader that acknowledged the record."""
    offset: int
    timestamp: int


class TimeLookups(Actor):
    """Runs one client that writes records with timestamps out of order, and looks up offsets by time."""

    name = "times"
    odds = 0.11
    checks = "offsets by time"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.sent: dict[bytes, int] = {}
        """Timestamps by value."""

    def preparations(self, founder: SimClient) -> list[Preparation]:
        random = Random(f"times {self.run.setup.seed}")
        configs = {"internal.segment.bytes": random.choice(("900", "3000", "100000"))}
        topic = TopicSetup(PLACE[0], 1, self.run.setup.replicas, configs)
        return [(topic.name, partial(create_topic, founder, topic))]

    def start(self) -> None:
        client = self.run.client("times")
        self.run.start(client, Asker(client, self.sent, pace_s=self.run.pace_s))

    async def check(self, auditor: SimClient) -> None:
        """Check that every response is the result of a scan of all records, once the cluster has settled."""
        consumer = Consumer(auditor, [PLACE], max_wait_ms=100, pace_s=0.0)
        await consumer.read_to_the_end()
        found = [(offset, self.sent[value]) for offset, value in consumer.got[PLACE]]
        leader = await auditor.leader(*PLACE)
        times = sorted({timestamp for _, timestamp in found})
        asked = [0, *auditor.random.sample(times, min(len(times), 6)), *(time + 1 for time in times[-2:])]
        for timestamp in asked:
            right = next(((offset, own) for offset, own in found if own >= timestamp), (-1, -1))
            self._hold(timestamp, await offset_by_time(auditor, PLACE, leader, timestamp), right)
        newest = max(found, key=lambda each: each[1], default=(-1, -1))
        self._hold(MAX_TIMESTAMP, await offset_by_time(auditor, PLACE, leader, MAX_TIMESTAMP), newest)
        self._hold(EARLIEST_LOCAL, await offset_by_time(auditor, PLACE, leader, EARLIEST_LOCAL), (0, -1))
        self._hold(LATEST_TIERED, await offset_by_time(auditor, PLACE, leader, LATEST_TIERED), (-1, -1))

    def _hold(self, timestamp: int, answer: tuple[int, int], right: tuple[int, int]) -> None:
        if answer != right:
            self.run.history.breach(f"ListOffsets returned {answer} for time {timestamp}, but {right} is right")


class Asker:
    """Writes records and looks up offsets by time, in turn."""

    def __init__(self, client: SimClient, sent: dict[bytes, int], *, pace_s: float) -> None:
        self._client = client
        self._sent = sent
        self._pace_s = pace_s
        self._acked: list[Stamped] = []

    async def run(self) -> None:
        client = self._client
        while not client.stopping:
            try:
                await self._write()
                await self._ask()
                client.succeeded()
                await client.nap(self._pace_s * (1 + len(self._sent) / SLOWS_AFTER))
            except (Unanswered, Refused) as failed:
                client.note(f"cannot look up offsets by time: {failed}")
                client.forget_topic(PLACE[0])
                await client.nap(0.5)

    async def _write(self) -> None:
        """Write a few records in one batch. Raises Unanswered, Refused."""
        client, records = self._client, []
        for number in range(client.random.choice((1, 2, 5))):
            value = b"times/%d" % len(self._sent) + b"." * client.random.choice((0, 10))
            timestamp = client.wall_ms() + client.random.randint(-SPREAD_MS, 0)
            self._sent[value] = timestamp
            client.history.sends(client.name, Sent(value, PLACE, -1, False))
            records.append(Record(number, timestamp, None, value))
        batch = bytes(encode_batch(records, codec=client.random.choice(CODECS)))
        base, leader, _ = await produced(client, PLACE, batch)
        self._acked += [Stamped(leader.epoch, base + each.offset, each.timestamp) for each in records]

    async def _ask(self) -> None:
        """Look up a time. The leader has all records that were acknowledged in its epoch or earlier. Raises Unanswered,
        Refused."""
        client = self._client
        leader = await client.leader(*PLACE)
        had = [each for each in self._acked if each.epoch <= leader.epoch]
        if not had:
            return
        timestamp = client.random.choice(had).timestamp + client.random.choice((0, 0, 1, -700))
        floor = min((each.offset for each in had if each.timestamp >= timestamp), default=None)
        offset, found = await offset_by_time(client, PLACE, leader, timestamp)
        if floor is not None and not 0 <= offset <= floor:
            client.history.breach(
                f"ListOffsets returned {offset} for time {timestamp}, which {PLACE[0]}-0 has at {floor}"
            )
        if offset >= 0 and found < timestamp:
            client.history.breach(f"ListOffsets returned offset {offset} of time {found} for time {timestamp}")
        newest = max(each.timestamp for each in had)
        offset, found = await offset_by_time(client, PLACE, leader, MAX_TIMESTAMP)
        if offset >= 0 and found < newest:
            client.history.breach(f"a record of time {newest} was acknowledged, but the max timestamp is {found}")
        await latest_offset(client, PLACE)
