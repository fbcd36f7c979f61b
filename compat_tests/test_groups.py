"""Tests of groups: commit and resume, members that join and leave while records are produced, static members."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import pytest

from compat_tests.clients import CLIENTS, each_client
from compat_tests.conftest import MakeTopic, Running
from compat_tests.members import Member
from compat_tests.test_consume import poll_until
from compat_tests.vocabulary import Client, Message, Place, Receipts, Strategy, closing, send_all

Restart = Literal["consumer", "stop", "kill9"]
PARTITIONS = 5
GROUPS_SETTLE_S = 60.0
QUIET_S = 1.5


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = GROUPS_SETTLE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"timed out: {what}"
        time.sleep(0.05)


@each_client(restart=["consumer", "stop", "kill9"])
def test_a_group_resumes_where_it_committed(
    client: Client, restart: Restart, broker: Running, make_topic: MakeTopic, unique: Callable[[], str]
) -> None:
    topic, group = make_topic(), unique()
    producer = client.producer(broker.bootstrap)
    with closing(producer):
        send_all(producer, topic, [Message(f"{n}".encode()) for n in range(50)])
    consumer = client.consumer(broker.bootstrap, group=group)
    with closing(consumer):
        consumer.subscribe([topic])
        seen = [one.offset for one in poll_until(consumer, lambda found: len(found) >= 50)]
        consumer.commit()
        assert consumer.committed((topic, 0)) == 50
    if restart != "consumer":
        broker.stop() if restart == "stop" else broker.kill9()
        broker.restart()
    producer = client.producer(broker.bootstrap)
    with closing(producer):
        send_all(producer, topic, [Message(f"{n}".encode()) for n in range(50, 60)])
    consumer = client.consumer(broker.bootstrap, group=group)
    with closing(consumer):
        consumer.subscribe([topic])
        seen += [one.offset for one in poll_until(consumer, lambda found: len(found) >= 10)]
        assert consumer.committed((topic, 0)) == 50
    assert seen == list(range(60))


@each_client(strategy=["eager", "cooperative"])
def test_uncommitted_records_are_read_again(
    client: Client, strategy: Strategy, broker: Running, make_topic: MakeTopic, unique: Callable[[], str]
) -> None:
    if strategy not in client.strategies:
        strategy = "eager"
    topic, group = make_topic(), unique()
    producer = client.producer(broker.bootstrap)
    with closing(producer):
        send_all(producer, topic, [Message(f"{n}".encode()) for n in range(30)])
    for _ in range(2):
        consumer = client.consumer(broker.bootstrap, group=group, strategy=strategy)
        with closing(consumer):
            consumer.subscribe([topic])
            assert consumer.committed((topic, 0)) is None
            assert [one.offset for one in poll_until(consumer, lambda found: len(found) >= 30)] == list(range(30))


@contextmanager
def flowing(bootstrap: str, topic: str) -> Iterator[list[bytes]]:
    """Produce to all partitions while the block runs. Yields the values that were acknowledged."""
    sent: list[bytes] = []
    stop = threading.Event()
    failures: list[Exception] = []

    def flow() -> None:
        producer = CLIENTS[0].producer(bootstrap)
        with closing(producer):
            for round_number in range(100_000):
                if stop.is_set():
                    break
                values = [f"{round_number}-{at}".encode() for at in range(PARTITIONS * 4)]
                receipts = Receipts()
                for at, value in enumerate(values):
                    producer.send(topic, Message(value, partition=at % PARTITIONS), receipts.expect())
                producer.flush(30)
                try:
                    receipts.all_placed()
                except Exception as failure:  # noqa: BLE001 - told to the test's thread
                    failures.append(failure)
                    break
                sent.extend(values)
                stop.wait(0.02)

    thread = threading.Thread(target=flow, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        stop.set()
        thread.join(60)
    assert failures == []


def shared_out(members: list[Member], topic: str) -> bool:
    """Whether the members own all partitions, each once, and each member owns some."""
    held = Counter(place for member in members for place in member.partitions)
    everything: set[Place] = {(topic, at) for at in range(PARTITIONS)}
    return held.keys() == everything and set(held.values()) == {1} and all(member.partitions for member in members)


def strategies_of_each_client() -> list[object]:
    return [
        pytest.param(client, strategy, count, id=f"{client.name}-{strategy}-{count}")
        for client in CLIENTS
        for strategy in client.strategies
        for count in (2, 5)
    ]


@pytest.mark.parametrize(("client", "strategy", "count"), strategies_of_each_client())
def test_every_record_is_read_while_members_join_and_leave(
    client: Client, strategy: Strategy, count: int, broker: Running, make_topic: MakeTopic, unique: Callable[[], str]
) -> None:
    topic, group = make_topic(partitions=PARTITIONS), unique()
    members: list[Member] = []
    everyone: list[Member] = []

    def join() -> None:
        member = Member(client, broker.bootstrap, group, topic, strategy).start()
        members.append(member)
        everyone.append(member)

    with flowing(broker.bootstrap, topic) as sent:
        join()
        wait_for(lambda: shared_out(members, topic), "one member has all partitions")
        while len(members) < count:
            join()
        wait_for(lambda: shared_out(members, topic), f"{count} members share the partitions")
        members.pop(0).leave()
        wait_for(
            lambda: shared_out(members, topic), f"{count - 1} members share the partitions of the member that left"
        )
        join()
        wait_for(lambda: shared_out(members, topic), "a new member has its share")
    wait_for(
        lambda: {one.value for member in everyone for one in list(member.seen)} >= set(sent), "every record is read"
    )
    for member in members:
        member.leave()
    # commits follow the records: records read twice are those that one poll had fetched when a partition moved
    times_seen = Counter((one.partition, one.offset) for member in everyone for one in member.seen)
    assert max(times_seen.values()) <= len(everyone)


def await_quiet(members: list[Member]) -> None:
    """Wait until the group is stable: after a commit during the rebalance, some clients join once more."""
    quiet_since, before = time.monotonic(), [member.assignments for member in members]
    while time.monotonic() < quiet_since + QUIET_S:
        time.sleep(0.05)
        now = [member.assignments for member in members]
        if now != before:
            quiet_since, before = time.monotonic(), now


@each_client()
def test_a_static_member_returns_without_a_rebalance(
    client: Client, broker: Running, make_topic: MakeTopic, unique: Callable[[], str]
) -> None:
    topic, group = make_topic(partitions=PARTITIONS), unique()
    with flowing(broker.bootstrap, topic) as sent:
        stays = Member(client, broker.bootstrap, group, topic, instance="stays").start()
        goes = Member(client, broker.bootstrap, group, topic, instance="goes").start()
        wait_for(lambda: shared_out([stays, goes], topic), "two members share the partitions")
        await_quiet([stays, goes])
        had, assignments = goes.partitions, stays.assignments
        goes.leave()
        comes_back = Member(client, broker.bootstrap, group, topic, instance="goes").start()
        wait_for(lambda: comes_back.partitions == had, "the static member has its partitions again")
        wait_for(lambda: comes_back.seen, "the static member continues with its partitions")
        assert stays.assignments == assignments, "the other member had to rebalance"
    members = (stays, goes, comes_back)
    wait_for(lambda: {one.value for member in members for one in list(member.seen)} >= set(sent), "every record")
    stays.leave()
    comes_back.leave()
