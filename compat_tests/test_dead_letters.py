"""Dead letters of share groups (KIP-1191), with the clients that can reject records. Apache Kafka 4.3 refuses the
feature."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer
from confluent_kafka import ShareConsumer as ConfluentShareConsumer

from compat_tests.changing import until
from compat_tests.conftest import MakeTopic, Running, start_target
from compat_tests.reading import stored
from compat_tests.share_consumer import ShareConsumer

SETTINGS = {
    "errors.deadletterqueue.auto.create.topics.enable": "true",
    "offsets.topic.num.partitions": "5",
    "share.coordinator.state.topic.num.partitions": "3",
    "unstable.feature.versions.enable": "true",
}
REJECTED = "Offset rejected by client."
TOO_OFTEN = "Offset delivery count exceeded the threshold."


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest, target_name: str) -> Iterator[Running]:
    """A broker with unstable feature versions."""
    broker = start_target(target_name, SETTINGS)
    yield broker
    broker.stop()
    if not request.session.testsfailed:
        broker.remove()


@pytest.fixture
def group(broker: Running, target_name: str, unique: Callable[[], str]) -> str | None:
    """A group with a dead letter topic that has copies; None on Apache Kafka, which refuses level 2."""
    told = broker.tool("kafka-features", "upgrade", "--feature", "share.version=2")
    if target_name == "kafka":
        assert told.code != 0
        assert "share.version" in told.out + told.err
        return None
    told.ok()
    name = unique()
    given = {
        "share.auto.offset.reset": "earliest",
        "errors.deadletterqueue.topic.name": f"dlq.{name}",
        "errors.deadletterqueue.copy.record.enable": "true",
        "share.delivery.count.limit": "2",
    }
    told = broker.tool(
        "kafka-configs",
        "--alter",
        "--entity-type",
        "groups",
        "--entity-name",
        name,
        "--add-config",
        ",".join(f"{key}={value}" for key, value in given.items()),
    )
    told.ok()
    return name


def produced(broker: Running, topic: str, count: int) -> None:
    """Send `count` records, each in its own batch."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 1})
    for number in range(count):
        producer.produce(topic, f"v{number}", key=f"k{number}", partition=0, headers=[("trace", b"1")])
    assert producer.flush(30) == 0


def letters(broker: Running, group: str, count: int) -> list[Message]:
    """The dead letters of a group, once there are `count`."""
    topic = f"dlq.{group}"
    until(lambda: f"dlq.{group}" in broker.tool("kafka-topics", "--list").ok().split(), "the dead letter topic exists")
    until(lambda: len(stored(broker.bootstrap, topic)) >= count, f"there are {count} dead letters")
    return stored(broker.bootstrap, topic)


def headers(letter: Message) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in letter.headers() or []}


def pointers(topic: str, group: str, offset: int, deliveries: int, reason: str) -> dict[str, str]:
    return {
        "trace": "1",
        "__dlq.errors.topic": topic,
        "__dlq.errors.partition": "0",
        "__dlq.errors.offset": str(offset),
        "__dlq.errors.group": group,
        "__dlq.errors.delivery.count": str(deliveries),
        "__dlq.errors.message": reason,
    }


def kpybroker(broker: Running, *arguments: str) -> str:
    """The JSON that a command prints."""
    command = [sys.executable, "-m", "kpybroker", *arguments, "--bootstrap", broker.bootstrap]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_java_consumer_rejects_and_an_operator_sends_back(
    broker: Running, make_topic: MakeTopic, group: str | None
) -> None:
    if group is None:
        return
    topic = make_topic()
    produced(broker, topic, 4)
    consumer = ShareConsumer(broker.bootstrap, group, topic, share_acknowledgement_mode="explicit")
    kinds = {0: "ACCEPT", 1: "REJECT", 2: "ACCEPT", 3: "REJECT"}
    for record in consumer.poll_until(4):
        consumer.acknowledge(record, kinds[record.offset])
    assert consumer.commit() == {0: "NONE"}
    found = letters(broker, group, 2)
    assert [(letter.key(), letter.value(), headers(letter)) for letter in found] == [
        (b"k%d" % offset, b"v%d" % offset, pointers(topic, group, offset, 1, REJECTED)) for offset in (1, 3)
    ]
    shown = json.loads(kpybroker(broker, "dlq", "list", f"dlq.{group}", "--json"))
    assert [(row["origin"], row["error"]) for row in shown] == [
        ({"topic": topic, "partition": 0, "offset": offset}, REJECTED) for offset in (1, 3)
    ]
    kpybroker(broker, "dlq", "redrive", f"dlq.{group}", "--execute")
    again = consumer.poll_until(2)
    assert [(record.offset, record.deliveries, record.value) for record in again] == [(4, 1, "v1"), (5, 1, "v3")]
    for record in again:
        consumer.acknowledge(record, "ACCEPT")
    assert consumer.commit() == {0: "NONE"}
    consumer.close()
    assert json.loads(kpybroker(broker, "dlq", "list", f"dlq.{group}", "--json")) == []


def test_a_record_that_is_released_too_often_becomes_a_dead_letter(
    broker: Running, make_topic: MakeTopic, group: str | None
) -> None:
    if group is None:
        return
    topic = make_topic()
    produced(broker, topic, 1)
    consumer = ShareConsumer(broker.bootstrap, group, topic, share_acknowledgement_mode="explicit")
    for deliveries in (1, 2):
        [record] = consumer.poll_until(1)
        assert record.deliveries == deliveries
        consumer.acknowledge(record, "RELEASE")
        assert consumer.commit() == {0: "NONE"}
    [letter] = letters(broker, group, 1)
    assert headers(letter) == pointers(topic, group, 0, 2, TOO_OFTEN)
    consumer.close()


def test_librdkafkas_share_consumer_rejects(broker: Running, make_topic: MakeTopic, group: str | None) -> None:
    if group is None:
        return
    topic = make_topic()
    produced(broker, topic, 3)
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
    consumer = ConfluentShareConsumer(settings)
    consumer.subscribe([topic])
    left = 3
    for _ in range(120):
        for message in consumer.poll(0.5):
            assert message.error() is None
            is_bad = message.offset() == 1
            consumer.acknowledge(message, AcknowledgeType.REJECT if is_bad else AcknowledgeType.ACCEPT)
            left -= 1
        if not left:
            break
    consumer.commit_sync()
    consumer.close()
    [letter] = letters(broker, group, 1)
    assert (letter.key(), letter.value()) == (b"k1", b"v1")
    assert headers(letter) == pointers(topic, group, 1, 1, REJECTED)
