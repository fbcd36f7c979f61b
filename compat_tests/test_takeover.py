"""Tests that clients find the same state before and after a change between kpybroker and Apache Kafka on the same
directories.

A `Life` begins on each broker and continues on all brokers that follow, and stock clients run all the time (see
docs/moving-to-apache-kafka.md).
"""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from compat_tests.changing import LONG_MS, Source, alter, create, send, until
from compat_tests.dumps import dump_everything
from compat_tests.kept import Replica, await_move, move, places, quotas, replicas_of
from compat_tests.taken_over import Life
from compat_tests.takeover_company import Company
from compat_tests.transactors import JAVA
from compat_tests.visible import BROKER, Eyes, Facts, difference, is_served, look, partition
from kpybroker.wire.records.batch import encode_batch
from oracle.takeover import KAFKA, KPYBROKER, Home

ONCE = (KPYBROKER, KAFKA, KPYBROKER)
TWICE = (*ONCE, KAFKA, KPYBROKER)
LIBRDKAFKA = "confluent-kafka"


class Story:
    """The `Life` objects on one `Home`, and their clients."""

    def __init__(self, home: Home, kinds: tuple[str, ...], clients: tuple[str, ...]) -> None:
        self._home = home
        self._lives: list[Life] = []
        self._source = Source(int(time.time() * 1000) - LONG_MS)
        home.start(kinds[0])
        with Company(home.bootstrap, clients, home.node_count) as self._company:
            self._begin(kinds[0])
            for seen, (before, kind) in enumerate(pairwise(kinds), 2):
                self._change(kind)
                self._go_on(may_forget=before == KAFKA)
                if seen < len(kinds):
                    self._begin(kind)

    def _go_on(self, *, may_forget: bool) -> None:
        """Continue all existing `Life` objects on the current broker."""
        with Eyes(self._home.address) as eyes:
            for life in self._lives:
                life.go_on(eyes)
        self._company.go_on(may_forget=may_forget)

    def _begin(self, kind: str) -> None:
        """Begin a new `Life`, and then leave transactions and deletions open."""
        with Eyes(self._home.address) as eyes:
            self._lives.append(Life(f"{len(self._lives)}-{kind}", self._source, self._home.node_count))
            self._lives[-1].begin(eyes)
            for life in self._lives:
                life.leave_open(eyes)
        for life in self._lives:
            until(lambda life=life: self._home.has_cleaned(*life.compacted), f"{life.name} is compacted")

    def _change(self, kind: str) -> None:
        """Stop the broker, start the other kind, and compare the states that clients can see."""
        before = self._look()
        with Eyes(self._home.address) as eyes:
            for life in self._lives:
                life.let_expire(eyes)
        self._home.end()
        self._home.start(kind)
        until(lambda: is_served(self._home.address, before), f"{kind} serves all topics and groups")
        changed = difference(before, self._look())
        assert not changed, "\n".join(changed)

    def _look(self) -> Facts:
        """All state that clients can see. Of the state that changes without requests, only the parts that must not
        change."""
        unsteady = (name for life in self._lives for name in life.unsteady)
        facts = look(self._home.address, (*unsteady, *self._company.names))
        with Eyes(self._home.address) as eyes:
            facts |= quotas(eyes) | places(eyes)
            return facts | {f"{life.name} compacted": life.table(eyes) for life in self._lives}


def test_there_and_back() -> None:
    with Home() as home:
        Story(home, ONCE, ())
        home.stop()


@pytest.mark.full
def test_two_log_directories() -> None:
    with Home(more_log_dirs=("second",)) as home:
        Story(home, ONCE, ())
        home.stop()
        assert all(any(data.glob("*-[0-9]")) for data in home.data), "each has its share"


@pytest.mark.full
@pytest.mark.parametrize("how", ["stop", "kill9"])
def test_a_replica_in_the_middle_of_a_move_between_two_directories(how: str) -> None:
    """The move continues on the other broker, and is completed."""
    topic, throttle = "moving", "replica.alter.log.dirs.io.max.bytes.per.second"
    place = topic, 0
    source = Source(int(time.time() * 1000) - LONG_MS)
    with Home(how=how, more_log_dirs=("second",)) as home:
        home.start(KPYBROKER)
        with Eyes(home.address) as eyes:
            create(eyes, topic, 1, 1, {})
            for _ in range(30):
                send(eyes, place, encode_batch(source.records(30, b"x" * 3000)))
        for kind in (KAFKA, KPYBROKER):
            with Eyes(home.address) as eyes:
                alter(eyes, BROKER, "1", {throttle: "10000"})
                before = partition(eyes, place)
                goal = move(eyes, place, 1)
                coming = Replica(goal, is_future=True)
                assert coming in replicas_of(eyes, place, 1)
            home.end()
            home.start(kind)
            until(lambda: is_served(home.address, {}), f"{kind} leads all partitions")
            with Eyes(home.address) as eyes:
                assert coming in replicas_of(eyes, place, 1)
                assert partition(eyes, place)["records"] == before["records"]
                alter(eyes, BROKER, "1", {throttle: "1000000000"})
                await_move(eyes, place, 1, goal)
                assert partition(eyes, place)["records"] == before["records"]
                send(eyes, place, encode_batch(source.records(1)))
        home.stop()


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["stop", "kill9"])
@pytest.mark.parametrize("nodes", [1, 3])
def test_there_and_back_twice(nodes: int, how: str) -> None:
    with Home(nodes, how=how) as home:
        Story(home, TWICE, (LIBRDKAFKA, JAVA))
        home.stop()
        for data in home.data:
            dump_everything(data)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_state_that_apache_kafka_has_created() -> None:
    with Home() as home:
        Story(home, (KAFKA, KPYBROKER, KAFKA), (LIBRDKAFKA, JAVA))
        home.stop()
