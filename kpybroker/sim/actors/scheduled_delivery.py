"""Records that are delivered later: producers of all kinds, a consumer, and the laws that check both."""

from __future__ import annotations

from functools import partial
from random import Random

from kpybroker.sim.actors.actor import Actor, Preparation
from kpybroker.sim.clients.client import SimClient, Unanswered
from kpybroker.sim.clients.consuming import Consumer, latest_offset
from kpybroker.sim.clients.producing import SimProducer
from kpybroker.sim.clients.run import Run
from kpybroker.sim.clients.topic_admin import create_topic
from kpybroker.sim.clients.transacting import Transactor
from kpybroker.sim.cluster.setup import TopicSetup
from kpybroker.sim.laws.scheduled_law import breaches, missing
from kpybroker.topics import TopicPartition

TOPIC = "later"
PARTITIONS = 2
DELAYS_MS = (None, 0, 1, 200, 1000, 1000, 4000, 9000)
SLOWS_AFTER = 40


class ScheduledDelivery(Actor):
    """Runs producers of a topic with scheduled records: idempotent, plain and transactional ones."""

    name = "scheduled"
    odds = 0.2
    checks = "scheduled records"

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.places: list[TopicPartition] = [(TOPIC, index) for index in range(PARTITIONS)]
        self.reader: PromptReader | None = None

    def preparations(self, founder: SimClient) -> list[Preparation]:
        configs = {"kpybroker.delivery.scheduled": "true"}
        topic = TopicSetup(TOPIC, PARTITIONS, self.run.setup.replicas, configs)
        return [(topic.name, partial(create_topic, founder, topic))]

    def start(self) -> None:
        run, random = self.run, Random(f"scheduled {self.run.setup.seed}")
        for number in range(random.choice((1, 2))):
            client, is_idempotent = run.client(f"later{number}"), random.random() < 0.8
            producer = SimProducer(
                client,
                random.choice(self.places),
                acks=-1,
                idempotent=is_idempotent,
                pace_s=run.pace_s,
                slows_after=SLOWS_AFTER,
                codecs=(0, 0, 3),
                delays_ms=DELAYS_MS,
            )
            run.start(client, producer)
        if random.random() < 0.6:
            client = run.client("latertx")
            run.start(client, Transactor(client, "latertx", self.places, pace_s=run.pace_s, delays_ms=DELAYS_MS))
        client = run.client("later reader")
        self.reader = PromptReader(client, self.places)
        run.start(client, self.reader)

    async def check(self, auditor: SimClient) -> None:
        """Check the laws once every record that must appear has appeared. Raises Unanswered before."""
        history, is_timely = self.run.history, "clock_skew" not in self.run.setup.faults
        for place in self.places:
            end, stable = await latest_offset(auditor, place), await latest_offset(auditor, place, stable=True)
            if stable < end:
                raise Unanswered(f"a transaction is open at {stable}, below {end}")
            consumer = Consumer(auditor, [place], max_wait_ms=100, pace_s=0.0, committed=True, has_gaps=True)
            await consumer.read_to_the_end()
            sent, found = history.ledger(place).sent, consumer.got[place]
            left = missing(sent, found)
            if left:
                raise Unanswered(f"{len(left)} records of {place} have not appeared, among them {left[0]!r}")
            seen_ms = self.reader.seen_ms if self.reader is not None else {}
            for breach in breaches(sent, found, seen_ms, is_timely=is_timely):
                history.breach(f"{place[0]}-{place[1]}: {breach}")
            history.count("scheduled records delivered")


class PromptReader(Consumer):
    """A consumer that notes when it has read each record for the first time."""

    def __init__(self, client: SimClient, places: list[TopicPartition]) -> None:
        super().__init__(client, places, max_wait_ms=500, pace_s=0.5, has_gaps=True)
        self._clock = client
        self.seen_ms: dict[bytes, int] = {}

    async def fetch(self, place: TopicPartition) -> None:
        before = len(self.got[place])
        await super().fetch(place)
        for _, value in self.got[place][before:]:
            self.seen_ms.setdefault(value, self._clock.wall_ms())
