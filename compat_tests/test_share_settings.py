"""Share groups under settings that the other tests do not change: isolation, durations, pruning and failed
initialization."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from compat_tests.changing import until
from compat_tests.conftest import MakeTopic, Running, start_target
from compat_tests.share_consumer import ShareConsumer
from compat_tests.test_share_groups import Group, explicit, group, produced, sharing, values

__all__ = ["group"]

STATE = "__share_group_state"
HOUR_MS = 3_600_000
SETTINGS = {
    "group.share.initialize.retry.interval.ms": "1000",
    "offsets.topic.num.partitions": "5",
    "share.coordinator.cold.partition.snapshot.interval.ms": "1000",
    "share.coordinator.snapshot.update.records.per.snapshot": "2",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.prune.interval.ms": "1000",
}


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest, target_name: str) -> Iterator[Running]:
    """A broker that prunes often."""
    broker = start_target(target_name, SETTINGS)
    yield broker
    broker.stop()
    if not request.session.testsfailed:
        broker.remove()


def sent_in(producer: Producer, topic: str, *texts: str) -> None:
    for text in texts:
        producer.produce(topic, text, partition=0)
    assert producer.flush(30) == 0


def test_only_committed_records_are_delivered(
    broker: Running, make_topic: MakeTopic, group: Group, unique: Callable[[], str]
) -> None:
    topic = make_topic()
    committed, uncommitted = group(isolation_level="read_committed"), group()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": unique()})
    producer.init_transactions(30)
    producer.begin_transaction()
    sent_in(producer, topic, "a0", "a1")
    producer.abort_transaction(30)
    producer.begin_transaction()
    sent_in(producer, topic, "c0", "c1")
    producer.commit_transaction(30)
    producer.begin_transaction()
    sent_in(producer, topic, "open")
    produced(broker, topic, 1)
    with sharing(broker, uncommitted, topic) as consumer:
        assert sorted(values(consumer.poll_until(6))) == ["a0", "a1", "c0", "c1", "open", "v0"]
    with sharing(broker, committed, topic) as consumer:
        assert sorted(values(consumer.poll_until(2))) == ["c0", "c1"]
        assert consumer.poll() == [], "a transaction is open"
        producer.commit_transaction(30)
        assert sorted(values(consumer.poll_until(2))) == ["open", "v0"]
        producer.begin_transaction()
        sent_in(producer, topic, "a2")
        producer.abort_transaction(30)
        produced(broker, topic, 1, 1)
        assert values(consumer.poll_until(1)) == ["v1"]


def test_a_group_begins_at_a_time(broker: Running, make_topic: MakeTopic, group: Group) -> None:
    topic, now_ms = make_topic(), int(time.time() * 1000)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 1})
    for text, hours in (("old", 3), ("middle", 2), ("new", 0)):
        producer.produce(topic, text, partition=0, timestamp=now_ms - hours * HOUR_MS)
        assert producer.flush(30) == 0
    for duration, expected in (
        ("PT1H", ["new"]),
        ("PT2H30M", ["middle", "new"]),
        ("P1D", ["old", "middle", "new"]),
    ):
        name = group(auto_offset_reset=f"by_duration:{duration}")
        with sharing(broker, name, topic) as consumer:
            assert values(consumer.poll_until(len(expected))) == expected


def log_start(broker: Running) -> int:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    low, _ = consumer.get_watermark_offsets(TopicPartition(STATE, 0), 30)
    consumer.close()
    return int(low)


def test_old_state_is_pruned_and_what_is_left_is_enough(broker: Running, make_topic: MakeTopic, group: Group) -> None:
    topic, name = make_topic(), group()
    produced(broker, topic, 12)
    with explicit(broker, name, topic) as consumer:
        before = log_start(broker)
        for record in sorted(consumer.poll_until(12), key=lambda record: record.offset):
            consumer.acknowledge(record, "RELEASE" if record.offset == 5 else "ACCEPT")
            assert consumer.commit() == {0: "NONE"}  # each is a record of the state
        until(lambda: log_start(broker) > before + 6, "the beginning of the log is deleted")
    broker.kill9()
    broker.restart()
    with explicit(broker, name, topic) as consumer:
        [record] = consumer.poll_until(1, polls=120)
        assert record.offset == 5
        # a Fetch that was under way when the record was released may have delivered it once more
        assert record.deliveries in (2, 3), "without the state, it would be the first delivery"
        consumer.acknowledge(record, "ACCEPT")
        assert consumer.commit() == {0: "NONE"}
        assert consumer.poll() == []


def test_a_failed_initialization_is_tried_again(
    broker: Running, make_topic: MakeTopic, group: Group, admin: AdminClient
) -> None:
    """At first, the group's state cannot be written, because too few replicas are in sync."""
    topic, warm = make_topic(), make_topic()
    produced(broker, warm, 1)
    with sharing(broker, group(), warm) as consumer:
        assert len(consumer.poll_until(1)) == 1  # the state topic exists
    name = group()
    produced(broker, topic, 3)

    def replicas_needed(count: int) -> None:
        broker.tool(
            "kafka-configs",
            *("--alter", "--entity-type", "topics", "--entity-name", STATE),
            *("--add-config", f"min.insync.replicas={count}"),
        ).ok()

    replicas_needed(2)
    consumer = ShareConsumer(broker.bootstrap, name, topic)
    try:
        assert consumer.poll_until(1, polls=6) == []
        replicas_needed(1)
        assert len(consumer.poll_until(3, polls=120)) == 3
        consumer.close()
    finally:
        replicas_needed(1)
