"""Tests that dead letters, as applications write them with stock clients, are sent home once by `kpybroker dlq`, which
speaks only Kafka's protocol: the same on Apache Kafka."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from compat_tests.changing import until
from compat_tests.clients import each_client
from compat_tests.conftest import MakeTopic, Running
from compat_tests.reading import stored
from compat_tests.vocabulary import Client, Header, Message, Received, closing, send_all

COUNT = 12
BIG = 24_000
"""The number of dead letters of redrives that are killed: 24 MB, of which a page is at most 3 MB."""
PARTITIONS = 3
WAIT_S = 120


def start(broker: Running, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kpybroker", "dlq", *arguments]
    environment = {**os.environ, "KPYBROKER_BOOTSTRAP": broker.bootstrap}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def dlq(broker: Running, *arguments: str) -> str:
    """The output of a command that must succeed."""
    process = start(broker, *arguments)
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    return out


def letter(home: str, number: int, more: tuple[Header, ...] = ()) -> Message:
    facts = {"topic": home, "partition": number % PARTITIONS, "offset": number, "delivery.count": 3}
    headers = tuple((f"__dlq.errors.{name}", str(value).encode()) for name, value in facts.items())
    return Message(b"%d" % number, b"key %d" % number, (*more, *headers), None, number % PARTITIONS)


@each_client(is_transactional=(False, True))
def test_dead_letters_of_a_client_go_home(
    client: Client, is_transactional: bool, broker: Running, make_topic: MakeTopic, unique: Callable[[], str]
) -> None:
    home, dead = make_topic(partitions=PARTITIONS), make_topic(partitions=PARTITIONS)
    messages = [letter(home, number, (("trace", b"%d" % number), ("empty", b""))) for number in range(COUNT)]
    if is_transactional:
        transactional = client.transactional(broker.bootstrap, unique())
        with closing(transactional):
            for ends in (transactional.abort, transactional.commit):
                transactional.begin()
                for message in messages:
                    transactional.send(dead, message)
                transactional.flush()
                ends()
    else:
        producer = client.producer(broker.bootstrap)
        with closing(producer):
            send_all(producer, dead, messages)
    until(lambda: len(json.loads(dlq(broker, "list", dead, "--json"))) == COUNT, "all dead letters are listed")
    even = 'header.trace in ("0", "2", "4", "6", "8", "10")'
    told = json.loads(dlq(broker, "redrive", dead, "--where", even, "--execute", "--json"))
    assert [row["sent"] for row in told["topics"]] == [COUNT // 2]
    rows = json.loads(dlq(broker, "list", dead, "--json"))
    assert sorted(int(row["value"]) for row in rows) == list(range(1, COUNT, 2))
    dlq(broker, "redrive", dead, "--execute")
    assert json.loads(dlq(broker, "list", dead, "--json")) == []
    assert json.loads(dlq(broker, "redrive", dead, "--execute", "--json"))["topics"] == []
    consumer = client.consumer(broker.bootstrap, isolation="read_committed")
    found: list[Received] = []
    with closing(consumer):
        consumer.assign({(home, partition): "earliest" for partition in range(PARTITIONS)})
        until(lambda: found.extend(consumer.poll(0.2)) or len(found) >= COUNT, "all records are at home")
    assert sorted((int(each.value or b""), each.partition, each.key, each.headers) for each in found) == [
        (number, number % PARTITIONS, b"key %d" % number, (("trace", b"%d" % number), ("empty", b"")))
        for number in range(COUNT)
    ]


@pytest.fixture
def many(broker: Running, make_topic: MakeTopic) -> tuple[str, str]:
    """A topic, and a topic with BIG dead letters from it."""
    home, dead = make_topic(partitions=PARTITIONS), make_topic(partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for number in range(BIG):
        value, key, headers, _, partition = (
            getattr(letter(home, number), name) for name in ("value", "key", "headers", "timestamp_ms", "partition")
        )
        producer.produce(dead, value + b" " * 1000, key, partition, headers=list(headers))
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0
    return home, dead


def check_home(broker: Running, home: str) -> None:
    """Each record is there once, for consumers that read committed records."""
    found = Counter(int(message.value() or b"") for message in stored(broker.bootstrap, home))
    assert found == Counter(range(BIG))


def test_redrives_that_are_killed_send_each_letter_once(
    broker: Running, admin: AdminClient, many: tuple[str, str]
) -> None:
    """A redrive is killed with -9 as soon as it has written records that its transaction has not committed yet, or may
    not have."""
    home, dead = many
    places = {TopicPartition(home, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}

    def end() -> int:
        return sum(each.result(30).offset for each in admin.list_offsets(places).values())

    def is_killed(records: int) -> bool:
        """Kill a redrive when it has sent more than this number of records. Whether it had not ended."""
        redrive, before = start(broker, "redrive", dead, "--execute"), end()
        until(lambda: redrive.poll() is not None or end() > before + records, "it has sent records, or has ended")
        has_ended = redrive.poll() is not None
        redrive.kill()
        _, err = redrive.communicate()
        assert not has_ended or redrive.returncode == 0, err
        return not has_ended

    kills = 0
    while is_killed(kills * 1000):
        kills += 1
    assert kills > 2
    check_home(broker, home)
    assert json.loads(dlq(broker, "list", dead, "--json")) == []


def test_redrives_at_the_same_time_send_each_letter_once(broker: Running, many: tuple[str, str]) -> None:
    home, dead = many
    running = [start(broker, "redrive", dead, "--execute") for _ in range(3)]
    for process in running:
        _, err = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0 or f"another redrive of {dead} has begun" in err, err
    assert 0 in [process.returncode for process in running]
    check_home(broker, home)
