"""Tests of share groups (KIP-932) with the Java client, librdkafka and Kafka's tools: the records that are
delivered again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka import ShareConsumer as ConfluentShareConsumer
from confluent_kafka.admin import AdminClient

from compat_tests.conftest import MakeTopic, Running, start_target
from compat_tests.share_consumer import ShareConsumer, Shared
from oracle.tools import tool

LOCK_MS = 1000
SETTINGS = {
    "group.share.min.record.lock.duration.ms": str(LOCK_MS),
    "share.coordinator.state.topic.num.partitions": "3",
    "offsets.topic.num.partitions": "5",
}


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest, target_name: str) -> Iterator[Running]:
    """A broker on which groups may have short acquisition locks."""
    broker = start_target(target_name, SETTINGS)
    yield broker
    broker.stop()
    if not request.session.testsfailed:
        broker.remove()


Group = Callable[..., str]


@pytest.fixture
def group(broker: Running, unique: Callable[[], str]) -> Group:
    """Returns a function: group(**settings) is the name of a new share group that begins at the earliest record. The
    names of the settings have _ in place of dots.
    """

    def make(**settings: object) -> str:
        name = unique()
        given = {"share.auto.offset.reset": "earliest"}
        given |= {f"share.{key.replace('_', '.')}": str(value) for key, value in settings.items()}
        told = ",".join(f"{key}={value}" for key, value in given.items())
        broker.tool(
            "kafka-configs", "--alter", "--entity-type", "groups", "--entity-name", name, "--add-config", told
        ).ok()
        return name

    return make


def produced(broker: Running, topic: str, count: int, first: int = 0) -> list[str]:
    """Send `count` records, each in its own batch. Returns their values."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 1})
    values = [f"v{number}" for number in range(first, first + count)]
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush(30)
    return values


@contextlib.contextmanager
def sharing(broker: Running, group: str, topic: str, **settings: object) -> Iterator[ShareConsumer]:
    consumer = ShareConsumer(broker.bootstrap, group, topic, **settings)
    try:
        yield consumer
    except BaseException:
        consumer.kill()
        raise
    consumer.close()


def values(records: list[Shared]) -> list[str]:
    return [record.value for record in records]


def explicit(
    broker: Running, group: str, topic: str, **settings: object
) -> contextlib.AbstractContextManager[ShareConsumer]:
    return sharing(broker, group, topic, share_acknowledgement_mode="explicit", **settings)


def test_what_is_polled_is_acknowledged_by_the_next_poll(broker: Running, make_topic: MakeTopic, group: Group) -> None:
    topic, name = make_topic(), group()
    sent = produced(broker, topic, 20)
    with sharing(broker, name, topic) as consumer:
        found = consumer.poll_until(20)
        assert sorted(values(found)) == sorted(sent)
        assert {record.deliveries for record in found} == {1}
        assert consumer.poll() == []
        assert consumer.commit() in ({}, {0: "NONE"})
    more = produced(broker, topic, 5, 20)
    with sharing(broker, name, topic) as consumer:
        assert sorted(values(consumer.poll_until(5))) == sorted(more)


def test_each_record_is_accepted_released_or_rejected(broker: Running, make_topic: MakeTopic, group: Group) -> None:
    topic, name = make_topic(), group()
    produced(broker, topic, 9)
    with explicit(broker, name, topic) as consumer:
        found = {record.offset: record for record in consumer.poll_until(9)}
        assert sorted(found) == list(range(9))
        kinds = {offset: ("ACCEPT", "RELEASE", "REJECT")[offset % 3] for offset in found}
        for offset, kind in kinds.items():
            consumer.acknowledge(found[offset], kind)
        assert consumer.commit() == {0: "NONE"}
        again = consumer.poll_until(3)
        assert sorted((record.offset, record.deliveries) for record in again) == [(1, 2), (4, 2), (7, 2)]
        for record in again:
            consumer.acknowledge(record, "ACCEPT")


def test_a_record_is_delivered_so_often_and_then_archived(broker: Running, make_topic: MakeTopic, group: Group) -> None:
    topic, name = make_topic(), group(delivery_count_limit=3)
    produced(broker, topic, 1)
    with explicit(broker, name, topic) as consumer:
        for deliveries in (1, 2, 3):
            [record] = consumer.poll_until(1)
            assert (record.offset, record.deliveries) == (0, deliveries)
            consumer.acknowledge(record, "RELEASE")
            assert consumer.commit() == {0: "NONE"}
        produced(broker, topic, 1, 1)
        [record] = consumer.poll_until(1)
        assert (record.offset, record.deliveries) == (1, 1)
        consumer.acknowledge(record, "ACCEPT")


def test_after_the_lock_a_record_is_given_to_another(broker: Running, make_topic: MakeTopic, group: Group) -> None:
    topic, name = make_topic(), group(record_lock_duration_ms=LOCK_MS)
    produced(broker, topic, 3)
    with explicit(broker, name, topic) as first, explicit(broker, name, topic) as second:
        held = first.poll_until(3)
        assert sorted(record.offset for record in held) == [0, 1, 2]
        again = second.poll_until(3)
        assert sorted(record.offset for record in again) == [0, 1, 2]
        assert all(record.deliveries > 1 for record in again)
        for record in again:
            second.acknowledge(record, "ACCEPT")
        assert second.commit() == {0: "NONE"}
        for record in held:
            first.acknowledge(record, "ACCEPT")
        first.commit()


def test_the_records_of_a_consumer_that_dies_are_available_at_once(
    broker: Running, make_topic: MakeTopic, group: Group
) -> None:
    topic, name = make_topic(), group()
    produced(broker, topic, 3)
    first = ShareConsumer(broker.bootstrap, name, topic, share_acknowledgement_mode="explicit")
    assert len(first.poll_until(3)) == 3
    first.kill()
    with sharing(broker, name, topic) as second:
        assert {(record.offset, record.deliveries) for record in second.poll_until(3)} == {(0, 2), (1, 2), (2, 2)}


def test_members_share_one_partition(broker: Running, make_topic: MakeTopic, group: Group) -> None:
    topic, name = make_topic(), group()
    with (
        sharing(broker, name, topic, max_poll_records=5) as first,
        sharing(broker, name, topic, max_poll_records=5) as second,
    ):
        first.poll()
        second.poll()
        sent = produced(broker, topic, 100)
        found: list[str] = []
        for _ in range(60):
            found += values(first.poll()) + values(second.poll())
            if len(found) >= 100:
                break
        assert sorted(found) == sorted(sent), "each record once, whichever member received it"


def test_accepted_records_stay_accepted_when_the_broker_is_killed(
    broker: Running, make_topic: MakeTopic, group: Group
) -> None:
    topic, name = make_topic(), group()
    produced(broker, topic, 6)
    with explicit(broker, name, topic) as consumer:
        for record in consumer.poll_until(6):
            if record.offset % 2 == 0:
                consumer.acknowledge(record, "ACCEPT")
            else:
                consumer.acknowledge(record, "RELEASE")
        assert consumer.commit() == {0: "NONE"}
        broker.kill9()
        broker.restart()
        again = consumer.poll_until(3, polls=120)
        assert sorted((record.offset, record.deliveries) for record in again) == [(1, 2), (3, 2), (5, 2)]
        for record in again:
            consumer.acknowledge(record, "ACCEPT")


def test_librdkafkas_share_consumer(broker: Running, make_topic: MakeTopic, group: Group) -> None:
    topic, name = make_topic(), group()
    sent = produced(broker, topic, 30)
    consumer = ConfluentShareConsumer({"bootstrap.servers": broker.bootstrap, "group.id": name})
    consumer.subscribe([topic])
    found: list[str] = []
    for _ in range(120):
        found += [message.value().decode() for message in consumer.poll(0.5) if message.error() is None]
        if len(found) >= 30:
            break
    consumer.close()
    assert sorted(found) == sorted(sent)


def test_tools_show_and_change_share_groups(broker: Running, make_topic: MakeTopic, group: Group) -> None:
    topic, name = make_topic(), group()
    produced(broker, topic, 10)
    shown = broker.tool(
        "kafka-console-share-consumer",
        "--topic",
        topic,
        "--group",
        name,
        "--max-messages",
        "4",
        "--timeout-ms",
        "30000",
    ).ok()
    assert [line for line in shown.split() if line.startswith("v")] == ["v0", "v1", "v2", "v3"]
    assert name in broker.tool("kafka-share-groups", "--list").ok().split()
    assert ["Share", "share"] in [line.split()[1:] for line in broker.tool("kafka-groups", "--list").ok().splitlines()]

    def offsets() -> list[str]:
        told = broker.tool("kafka-share-groups", "--describe", "--group", name).ok()
        return [line for line in told.splitlines() if line.startswith(name)]

    def of_topic() -> list[str]:
        [line] = offsets()
        return line.split()[1:]

    assert of_topic()[:2] == [topic, "0"]
    assert of_topic()[3] == "6"
    state = broker.tool("kafka-share-groups", "--describe", "--group", name, "--state").ok()
    assert "Empty" in state
    broker.tool(
        "kafka-share-groups", "--reset-offsets", "--group", name, "--topic", topic, "--to-earliest", "--execute"
    ).ok()
    assert of_topic()[2:] == ["0", "10"]
    broker.tool("kafka-share-groups", "--delete-offsets", "--group", name, "--topic", topic).ok()
    assert offsets() == []
    broker.tool("kafka-share-groups", "--delete", "--group", name).ok()
    assert name not in broker.tool("kafka-share-groups", "--list").ok().split()


def test_kafkas_dump_tool_reads_the_state(
    broker: Running, make_topic: MakeTopic, group: Group, admin: AdminClient
) -> None:
    topic, name = make_topic(), group()
    produced(broker, topic, 4)
    with explicit(broker, name, topic) as consumer:
        for record in consumer.poll_until(4):
            consumer.acknowledge(record, "ACCEPT" if record.offset else "RELEASE")
        assert consumer.commit() == {0: "NONE"}
        told = ""
        for file in sorted(Path(broker.data).glob("__share_group_state-*/*.log")):
            told += tool("kafka-dump-log", "--share-group-state-decoder", "--files", str(file)).ok()
        mine = [line for line in told.splitlines() if f'"groupId":"{name}"' in line]
        assert '"type":"0"' in mine[0]
        assert '"snapshotEpoch":0' in mine[0]
        assert any('"firstOffset":1,"lastOffset":3,"deliveryState":2,"deliveryCount":1' in line for line in mine)
        for record in consumer.poll_until(1):
            consumer.acknowledge(record, "ACCEPT")
