"""Tests of the consumer group protocol (KIP-848) with the clients that support it: librdkafka and Java, together and in
turn with members of the classic protocol. Heartbeats are frequent in these tests, because each step waits for a
heartbeat."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.conftest import Running, start_target, wait_until_led
from compat_tests.java_consumer import JavaConsumer

QUICK = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "300",
    "group.consumer.assignment.interval.ms": "100",
}
PARTITIONS = 12
SETTLE_S = 60.0
REST_S = 2.0
MANY = 50
ROUNDS = 60


@pytest.fixture(scope="module")
def quick(target_name: str) -> Iterator[Running]:
    """A separate broker, which requests a heartbeat every 300 ms."""
    broker = start_target(target_name, QUICK)
    yield broker
    broker.stop()
    broker.remove()


class Members:
    """librdkafka consumers in one group, polled in turn by one thread, and their partitions."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.bootstrap, self.group = bootstrap, group
        self.owners: dict[tuple[str, int], str] = {}
        self.live: dict[str, Consumer] = {}
        self.read: set[bytes] = set()
        self.errors: list[KafkaError] = []
        self.moves = 0

    def join(self, name: str, topics: list[str], protocol: str = "consumer", **settings: Any) -> None:
        config = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "client.id": name,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "log_level": 0,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
        if protocol == "classic":
            config = {"partition.assignment.strategy": "range", "heartbeat.interval.ms": 300} | config
        consumer = self.live[name] = Consumer(config)
        consumer.subscribe(
            topics,
            on_assign=lambda _, places: self._given(name, places),
            on_revoke=lambda _, places: self._gone(name, places),
            on_lost=lambda _, places: self._gone(name, places),
        )

    def _given(self, name: str, places: list[TopicPartition]) -> None:
        for each in places:
            owner = self.owners.setdefault((each.topic, each.partition), name)
            assert owner == name, f"{each.topic}-{each.partition} is owned by {owner} and by {name}"
            self.moves += 1

    def _gone(self, name: str, places: list[TopicPartition]) -> None:
        for each in places:
            assert self.owners.pop((each.topic, each.partition)) == name

    def leave(self, name: str) -> None:
        self.live.pop(name).close()
        assert name not in self.owners.values()

    def poll(self) -> None:
        """Poll each member once. Offsets are committed when partitions move, and every five seconds."""
        for consumer in list(self.live.values()):
            message = consumer.poll(0.002)
            if message is None:
                continue
            if message.error() is None:
                self.read.add(message.value())
            else:
                self.errors.append(message.error())

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SETTLE_S
        while not condition():
            assert time.monotonic() < deadline, f"timed out: {what}; {self.owners}"
            self.poll()

    def of(self, name: str) -> set[int]:
        return {partition for (_, partition), owner in self.owners.items() if owner == name}

    def shares(self) -> list[int]:
        return sorted(len(self.of(name)) for name in self.live)


@contextmanager
def members(bootstrap: str, group: str) -> Iterator[Members]:
    together = Members(bootstrap, group)
    try:
        yield together
    finally:
        for name in list(together.live):
            together.live.pop(name).close()


def make(broker: Running, name: str, partitions: int = PARTITIONS) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(30)
    wait_until_led(admin, name, partitions)
    return name


def send(broker: Running, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(30) == 0


def test_partitions_are_shared_and_handed_over(quick: Running, unique: Callable[[], str]) -> None:
    topic, group = make(quick, unique()), unique()
    values = [b"%d" % number for number in range(120)]
    send(quick, topic, values[:60])
    with members(quick.bootstrap, group) as some:
        some.join("a", [topic])
        some.until(lambda: some.shares() == [12] and len(some.read) == 60, "one has all")
        some.join("b", [topic])
        some.until(lambda: some.shares() == [6, 6], "both members have half of the partitions")
        kept = some.of("a"), some.of("b")
        some.join("c", [topic])
        some.until(lambda: some.shares() == [4, 4, 4], "all three members have a third of the partitions")
        assert some.of("a") <= kept[0], "a was assigned new partitions"
        assert some.of("b") <= kept[1], "b was assigned new partitions"
        some.leave("a")
        some.until(lambda: some.shares() == [6, 6], "its partitions belong to the other members")
        send(quick, topic, values[60:])
        some.until(lambda: len(some.read) == 120, "everything is read")


def test_expressions_find_new_topics(quick: Running, unique: Callable[[], str]) -> None:
    prefix = unique()
    make(quick, f"{prefix}-one", 2)
    make(quick, f"other-{prefix}-one", 2)
    with members(quick.bootstrap, unique()) as some:
        some.join("a", [f"^{prefix}-.*"])
        some.until(lambda: {topic for topic, _ in some.owners} == {f"{prefix}-one"}, "the topic is found")
        make(quick, f"{prefix}-two", 2)
        some.until(lambda: {topic for topic, _ in some.owners} == {f"{prefix}-one", f"{prefix}-two"}, "the next too")


def test_a_static_member_gets_its_partitions_again(quick: Running, unique: Callable[[], str]) -> None:
    topic = make(quick, unique())
    with members(quick.bootstrap, unique()) as some:
        some.join("a", [topic], group_instance_id="one")
        some.join("b", [topic])
        some.until(lambda: some.shares() == [6, 6], "they share")
        had, others = some.of("a"), some.of("b")
        some.leave("a")
        for _ in range(20):
            some.poll()
        some.join("a", [topic], group_instance_id="one")
        some.until(lambda: some.shares() == [6, 6], "it is back")
        assert (some.of("a"), some.of("b")) == (had, others)


def test_a_live_group_migrates_and_back(quick: Running, unique: Callable[[], str]) -> None:
    """The group has classic members, then members of both protocols, then no classic members, then classic members
    again. All records are read, and no partition has two owners."""
    topic = make(quick, unique())
    values = [b"%d" % number for number in range(400)]
    with members(quick.bootstrap, unique()) as some:

        def flows(number: int, what: str) -> None:
            send(quick, topic, values[100 * number : 100 * (number + 1)])
            some.until(lambda: len(some.read) == 100 * (number + 1), what)

        some.join("old-1", [topic], "classic")
        some.join("old-2", [topic], "classic")
        some.until(lambda: some.shares() == [6, 6], "two classic members")
        flows(0, "classic members read")
        some.join("new-1", [topic])
        some.until(lambda: some.shares() == [4, 4, 4], "one member of each protocol, and another member")
        flows(1, "members of both protocols read")
        some.leave("old-1")
        some.leave("old-2")
        some.until(lambda: some.shares() == [12], "only members of the consumer protocol")
        flows(2, "a member of the consumer protocol reads")
        some.join("old-3", [topic], "classic")
        some.until(lambda: some.shares() == [6, 6], "a classic member has returned")
        some.leave("new-1")
        some.until(lambda: some.shares() == [12], "only members of the classic protocol")
        flows(3, "a classic member reads")


def test_assignments_with_user_data_prevent_a_migration(quick: Running, unique: Callable[[], str]) -> None:
    """librdkafka's cooperative-sticky assignor puts user data into the assignments from the second rebalance on. A
    coordinator could not create such data, so a member of the consumer protocol is refused, and the group continues."""
    topic = make(quick, unique())
    with members(quick.bootstrap, unique()) as some:
        sticky = {"partition_assignment_strategy": "cooperative-sticky"}
        some.join("old-1", [topic], "classic", **sticky)
        some.until(lambda: some.shares() == [12], "the only member")
        some.join("old-2", [topic], "classic", **sticky)
        some.until(lambda: some.shares() == [6, 6], "two members after several rebalances")
        some.join("new-1", [topic])
        some.until(lambda: bool(some.errors), "an error")
        assert "The group id does not exist" in str(some.errors[0])
        send(quick, topic, [b"%d" % number for number in range(100)])
        some.until(lambda: len(some.read) == 100, "the classic members read")
        assert some.shares() == [0, 6, 6]


def test_fifty_members_join_and_leave(quick: Running, unique: Callable[[], str]) -> None:
    """Members join and leave at random. No partition ever has two owners. At the end each partition has one owner, all
    records are read, and no partition moves any more."""
    chance = random.Random(848)
    topic = make(quick, unique(), 60)
    values = [b"%d" % number for number in range(10 * ROUNDS)]
    with members(quick.bootstrap, unique()) as some:
        for number in range(ROUNDS):
            wanted = MANY if number < ROUNDS // 2 else MANY // 5
            for _ in range(chance.randrange(4)):
                if len(some.live) > 1 and (len(some.live) > wanted or chance.random() < 0.2):
                    some.leave(chance.choice(sorted(some.live)))
                else:
                    some.join(f"{number}-{chance.randrange(10**6)}", [topic])
            send(quick, topic, values[10 * number : 10 * (number + 1)])
            for _ in range(3):
                some.poll()
        while len(some.live) < MANY:
            some.join(f"last-{len(some.live)}", [topic])
        some.until(lambda: sum(some.shares()) == 60 and some.shares()[0] >= 1, "every partition has one owner")
        some.until(lambda: len(some.read) == len(values), "everything is read")
        moves, until = some.moves, time.monotonic() + REST_S
        while time.monotonic() < until:
            some.poll()
        assert some.moves == moves, "partitions move although no member joins or leaves"
        assert some.shares()[-1] <= 2


def test_java_shares_with_librdkafka(quick: Running, unique: Callable[[], str]) -> None:
    topic, group = make(quick, unique()), unique()
    with members(quick.bootstrap, group) as some, ExitStack() as stack:
        some.join("a", [topic])
        some.until(lambda: some.shares() == [12], "one has all")
        java = JavaConsumer(quick.bootstrap, group, "names", topic, group_protocol="consumer")
        stack.callback(java.close)
        some.until(lambda: some.shares() == [6] and len(java.owned) == 6, "they share")
        mine = {f"{topic}-{partition}" for partition in some.of("a")}
        assert not mine & java.owned
        send(quick, topic, [b"%d" % number for number in range(60)])
        some.until(lambda: len(some.read) + len(java.read) == 60, "everything is read")
    assert java.owned == set()


def test_java_subscribes_by_an_expression_of_the_broker(quick: Running, unique: Callable[[], str]) -> None:
    prefix, group = unique(), unique()
    make(quick, f"{prefix}-one", 2)
    with members(quick.bootstrap, group) as some:
        java = JavaConsumer(quick.bootstrap, group, "pattern", f"{prefix}-.*", group_protocol="consumer")
        some.until(lambda: len(java.owned) == 2, "the topic is found")
        make(quick, f"{prefix}-two", 1)
        some.until(lambda: len(java.owned) == 3, "the next too")
        java.close()


def test_the_tools_show_and_change_consumer_groups(quick: Running, unique: Callable[[], str]) -> None:
    topic, group = make(quick, unique(), 2), unique()
    producer = Producer({"bootstrap.servers": quick.bootstrap, "log_level": 0})
    for number in range(40):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert producer.flush(30) == 0

    def groups(*options: str) -> str:
        return quick.tool("kafka-consumer-groups", *options).ok()

    with members(quick.bootstrap, group) as some:
        some.join("a", [topic])
        some.until(lambda: len(some.read) == 40, "everything is read")
        some.live["a"].commit(asynchronous=False)
        state = groups("--describe", "--group", group, "--state")
        assert re.search(rf"{group}\s+.*uniform\s+Stable\s+1", state)
        shown = groups("--describe", "--group", group)
        assert re.search(rf"^{group}\s+{topic}\s+0\s+.*20\s+20\s+0\s", shown, re.MULTILINE)
        verbose = groups("--describe", "--group", group, "--members", "--verbose")
        assert re.search(rf"{topic}:0,1", verbose)
        assert re.search(rf"{group}\s+Consumer\s+Stable", groups("--list", "--type", "consumer", "--state"))
        assert "GroupNotEmptyException" in groups("--delete", "--group", group)
        some.leave("a")
    assert re.search(rf"{group}\s+.*Empty\s+0", groups("--describe", "--group", group, "--state"))
    groups("--reset-offsets", "--group", group, "--topic", f"{topic}:0", "--to-offset", "5", "--execute")
    shown = groups("--describe", "--group", group)
    assert re.search(rf"^{group}\s+{topic}\s+0\s+.*5\s+20\s+15\s", shown, re.MULTILINE)
    groups("--delete", "--group", group)
    assert group not in groups("--list").split()
    quick.tool("kafka-configs", "--alter", "--entity-type", "groups", "--entity-name", group, "--add-config",
               "consumer.heartbeat.interval.ms=400").ok()  # fmt: skip
    told = quick.tool("kafka-configs", "--describe", "--entity-type", "groups", "--entity-name", group).ok()
    assert "consumer.heartbeat.interval.ms=400" in told


def test_a_group_continues_after_the_broker_was_killed(quick: Running, unique: Callable[[], str]) -> None:
    topic = make(quick, unique())
    with members(quick.bootstrap, unique()) as some:
        some.join("a", [topic])
        some.join("b", [topic])
        some.until(lambda: some.shares() == [6, 6], "they share")
        had, moves = dict(some.owners), some.moves
        quick.kill9()
        quick.restart()
        send(quick, topic, [b"%d" % number for number in range(60)])
        some.until(lambda: len(some.read) == 60, "everything is read")
        assert (some.owners, some.moves) == (had, moves), "no member had to revoke a partition"
