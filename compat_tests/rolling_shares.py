"""The share group of the load of a rolling replacement (KIP-932): two Java consumers accept the records of a topic of
their own, or release them for the next delivery. Delivery is at least once: records are delivered again if their leader
changes before their acceptance is stored."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

from confluent_kafka import Producer

from compat_tests.changing import until
from compat_tests.rolling import PARTITIONS, PATIENCE_S, QUIET, Row, Silence, Stream, Worker
from compat_tests.share_consumer import Failed, ShareConsumer, Shared
from oracle.tools import tool

TOPIC, GROUP, STATE = "jobs", "workers", "__share_group_state"
WORKERS = 2
PAUSE_S = 0.05
RELEASED = 0.05
"""The share of records that is released at the first delivery."""
SETTINGS = "share.auto.offset.reset=earliest,share.record.lock.duration.ms=15000"
NONE, NOT_HELD = "NONE", "InvalidRecordStateException"

Place = tuple[int, int]
"""Partition and offset of a record."""


def place_of(record: Shared) -> Place:
    return record.partition, record.offset


class Jobs(Stream):
    """The producer. It is slower than the others, because each record is acknowledged by itself."""

    def step(self) -> None:
        super().step()
        self._stopping.wait(PAUSE_S)


class Sharer(Worker):
    """A member of the group, which acknowledges explicitly. At the end it works until `is_done`."""

    def __init__(self, bootstrap: str, number: int, silence: Silence, is_done: Callable[[], bool]) -> None:
        super().__init__()
        self.delivered: dict[Place, str] = {}
        """The values by place."""
        self.deliveries: Counter[Place] = Counter()
        self.released = 0
        self.accepted: set[Place] = set()
        """Also records of which the consumer does not know whether the acceptance was stored."""
        self.confirmed: dict[Place, float] = {}
        """When the acceptance was confirmed."""
        self.begun: list[tuple[Place, float]] = []
        """When the poll began that returned a record."""
        self.refused: Counter[str] = Counter()
        """Names of exceptions."""
        self._chance = random.Random(number)
        self._silence = silence
        self._is_done = is_done
        self._consumer = ShareConsumer(bootstrap, GROUP, TOPIC, share_acknowledgement_mode="explicit")

    def step(self) -> None:
        began_s = time.monotonic()
        try:
            records = self._consumer.poll()
        except Failed as failure:
            self.refused[str(failure)] += 1
            return
        accepted = []
        for record in records:
            place = place_of(record)
            self.delivered[place] = record.value
            self.deliveries[place] += 1
            self.begun.append((place, began_s))
            is_released = record.deliveries == 1 and self._chance.random() < RELEASED
            self._consumer.acknowledge(record, "RELEASE" if is_released else "ACCEPT")
            if is_released:
                self.released += 1
            else:
                accepted.append(place)
        self._commit(accepted)

    def _commit(self, accepted: list[Place]) -> None:
        try:
            outcome = self._consumer.commit()
        except Failed as failure:
            self.refused[str(failure)] += 1
            outcome = {}
        self.refused.update(code for code in outcome.values() if code != NONE)
        for place in accepted:
            code = outcome.get(place[0])
            if code != NOT_HELD:
                self.accepted.add(place)
            if code == NONE:
                self.confirmed[place] = time.monotonic()
                self._silence.heard()

    def finish(self) -> None:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and not self._is_done():
            self.step()
        self._consumer.kill()  # after these changes of leaders, Kafka's client takes half a minute to close


class ShareGroup:
    """The producer and the members."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._starts: dict[int, int] = {}
        alter = ("--alter", "--entity-type", "groups", "--entity-name", GROUP, "--add-config", SETTINGS)
        tool("kafka-configs", *alter, bootstrap=bootstrap).ok()
        self.silence = Silence()
        """Between two confirmed acceptances."""
        self.jobs = Jobs(bootstrap, TOPIC)
        self.members = [Sharer(bootstrap, number, self.silence, self.is_done) for number in range(WORKERS)]

    @property
    def clients(self) -> list[Worker]:
        """The producer is the last to start and the first to end."""
        return [*self.members, self.jobs]

    def await_consuming(self) -> None:
        until(lambda: any(member.confirmed for member in self.members), "the share group has accepted a record")

    def is_done(self) -> bool:
        """Whether every record is accepted, according to the coordinator of the state."""
        return [lag for _, lag in self._described().values()] == [0] * PARTITIONS

    def _described(self) -> dict[int, tuple[int, int]]:
        """Partition -> start offset and lag, as Kafka's tool prints them. Partitions without them are omitted."""
        told = tool("kafka-share-groups", "--describe", "--group", GROUP, bootstrap=self._bootstrap).out
        rows = [line.split() for line in told.splitlines() if line.startswith(GROUP)]
        return {int(row[2]): (int(row[3]), int(row[4])) for row in rows if row[3].isdigit() and row[4].isdigit()}

    def check_starts(self) -> None:
        """No start offset is lower than before, whichever broker coordinates the state now."""
        found = until(lambda: len(self._described()) == PARTITIONS and self._described(), "the group is described")
        starts = {partition: start for partition, (start, _) in found.items()}
        receded = {partition: (before, starts[partition]) for partition, before in self._starts.items()}
        assert all(before <= now for before, now in receded.values()), f"start offsets: {receded}"
        self._starts = starts

    def check(self, stored: dict[int, list[Row]]) -> None:
        """Every acknowledged record is stored, was delivered and accepted, and a new member gets only what is new."""
        self.jobs.check(stored)
        values = {(partition, offset): str(number) for partition, rows in stored.items() for offset, number in rows}
        delivered = {place: value for member in self.members for place, value in member.delivered.items()}
        assert delivered == values, f"not delivered: {sorted(values.keys() - delivered.keys())}"
        left = values.keys() - {place for member in self.members for place in member.accepted}
        assert not left, f"delivered, but not accepted: {sorted(left)}"
        assert self.is_done(), f"start offset and lag by partition: {self._described()}"
        producer = Producer({"bootstrap.servers": self._bootstrap, **QUIET})
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, b"new", partition=partition)
        assert producer.flush(PATIENCE_S) == 0
        last = Sharer(self._bootstrap, len(self.members), self.silence, self.is_done)
        until(lambda: last.step() or len(last.confirmed) >= PARTITIONS, "the new records are accepted")
        last.finish()
        assert list(last.delivered.values()) == ["new"] * PARTITIONS, f"delivered again: {last.delivered}"

    @property
    def summary(self) -> str:
        """Counts for people."""
        deliveries, released = sum((each.deliveries for each in self.members), Counter[Place]()), 0
        confirmed: dict[Place, float] = {}
        refused: Counter[str] = Counter()
        for member in self.members:
            released += member.released
            refused += member.refused
            for place, at_s in member.confirmed.items():
                confirmed[place] = min(at_s, confirmed.get(place, at_s))
        begun = [each for member in self.members for each in member.begun]
        late = sum(began_s > confirmed.get(place, began_s) for place, began_s in begun)
        again = deliveries.total() - len(deliveries) - released
        return (
            f"the share group: {len(deliveries):,} records, {released:,} released, {again:,} others delivered again, "
            f"{late} of them after their acceptance was confirmed; refusals: {dict(refused)}"
        )
