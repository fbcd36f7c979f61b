"""Tests that `Kafka` works without a client library, and that confluent-kafka reads the same topics and records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.client.client import CommandFailed
from kpybroker.errors import ConfigError, ErrorCode, KafkaError
from kpybroker.testing import Broker, Kafka, ReceivedRecord
from kpybroker.testing.kafka import PREFIX_MAX, TIMESTAMP_MS_MAX

pytestmark = pytest.mark.slow

PATIENCE_S = 30
content = st.none() | st.binary(max_size=50)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def read_by_confluent(broker: Kafka, topic: str, count: int) -> list[tuple[Any, ...]]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.auto.commit": False})
    partitions = consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found = consumer.consume(count, PATIENCE_S)
    consumer.close()
    return sorted((message.partition(), message.offset(), message.key(), message.value()) for message in found)


@settings(max_examples=20, deadline=None)
@given(values=st.lists(content, min_size=1, max_size=5), key=content, partition=st.sampled_from([None, 0, 2]))
def test_what_is_sent_is_read_by_both(
    broker: Broker, values: list[bytes | None], key: bytes | None, partition: int | None
) -> None:
    topic = broker.topic("orders", partitions=3)
    broker.send(topic, *values, key=key, headers={"trace": "1", "none": None}, partition=partition, timestamp_ms=1000)
    records = broker.records(topic)
    assert sorted(records) == records
    assert [(record.key, record.value) for record in records] == [(key, value) for value in values]
    assert {record.headers for record in records} == {(("trace", b"1"), ("none", None))}
    assert {record.timestamp_ms for record in records} == {1000}
    assert read_by_confluent(broker, topic, len(values)) == [
        (record.partition, record.offset, record.key, record.value) for record in records
    ]
    if partition is not None:
        assert {record.partition for record in records} == {partition}


def test_a_key_has_the_partition_that_other_clients_give_it(broker: Broker) -> None:
    ours, theirs = broker.topic("orders", partitions=7), broker.topic("orders", partitions=7)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for number in range(50):
        broker.send(ours, "x", key=f"k{number}")
        producer.produce(theirs, b"x", f"k{number}".encode())
    assert producer.flush(PATIENCE_S) == 0
    placed = [{(record.partition, record.key) for record in broker.records(topic)} for topic in (ours, theirs)]
    assert placed[0] == placed[1]


def test_a_topic_has_the_partitions_and_settings_it_was_given(broker: Broker) -> None:
    topic = broker.topic("a b[c]", partitions=4, config={"retention.ms": 1000, "unclean.leader.election.enable": True})
    assert topic.startswith("a-b-c--")
    assert (
        len(AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(topic, 10).topics[topic].partitions) == 4
    )
    with pytest.raises(KafkaError) as raised:
        broker.topic(config={"retention.ms": "never"})
    assert raised.value.code is ErrorCode.INVALID_CONFIG
    with pytest.raises(KafkaError) as raised:
        broker.topic(partitions=0)
    assert raised.value.code is ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize("name", ["topic", "group"])
def test_a_name_that_would_be_too_long_is_refused(name: str, broker: Broker) -> None:
    assert len(getattr(broker, name)("x" * PREFIX_MAX)) <= 249
    with pytest.raises(ValueError, match="201 characters; at most 200"):
        getattr(broker, name)("x" * (PREFIX_MAX + 1))


def test_expect_waits_for_what_others_send_and_reports_what_was_there(broker: Broker) -> None:
    topic = broker.topic("orders")
    with pytest.raises(AssertionError, match=rf"expected 1 records in {topic} within 0 s, found 0"):
        broker.expect(topic, 1, timeout_s=0)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"paid")
    producer.poll(0)
    (record,) = broker.expect(topic, 1, PATIENCE_S)
    assert record == ReceivedRecord(0, 0, record.timestamp_ms, None, b"paid", ())
    with pytest.raises(AssertionError, match=r"found 1\n  ReceivedRecord\(.*value=b'paid'"):
        broker.expect(topic, 2, timeout_s=0)


def test_more_records_than_wanted_are_refused(broker: Broker) -> None:
    topic = broker.topic(create=True)
    broker.send(topic, *"abc")
    assert len(broker.records(topic, at_most=3)) == 3
    with pytest.raises(ValueError, match=f"{topic} holds more than 2 records"):
        broker.records(topic, at_most=2)


def test_the_progress_of_a_group(broker: Broker) -> None:
    topic, group = broker.topic("orders", partitions=2), broker.group("readers")
    broker.send(topic, *"abcde", partition=0)
    broker.send(topic, *"fgh", partition=1)
    assert broker.committed(group, topic) == {}
    assert broker.lag(group, topic) == 8
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
    assert broker.committed(group, topic) == {0: 5}
    assert broker.lag(group, topic) == 3
    with pytest.raises(AssertionError, match=rf"{group} has not read {topic} .*: its lag is 3, .* \{{0: 5\}}"):
        broker.wait_until_read(group, topic, timeout_s=0)
    consumer.commit(offsets=[TopicPartition(topic, 1, 3)], asynchronous=False)
    broker.wait_until_read(group, topic, PATIENCE_S)
    consumer.close()


def test_reset_leaves_neither_topics_nor_groups(broker: Broker) -> None:
    topic, group = broker.topic("orders", create=True), broker.group()
    broker.send(topic, "1")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    assert consumer.consume(1, PATIENCE_S)
    consumer.commit(asynchronous=False)
    with pytest.raises(KafkaError, match=f"group {group} has members; stop them first"):
        broker.reset()
    consumer.close()
    broker.reset()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    assert {name for name in admin.list_topics(timeout=10).topics if not name.startswith("__")} == set()
    assert admin.list_consumer_groups().result(PATIENCE_S).valid == []
    broker.send(topic, "2")
    assert [record.value for record in broker.records(topic)] == [b"2"]
    assert broker.committed(group, topic) == {}


def test_what_does_not_exist_is_named(broker: Broker) -> None:
    with pytest.raises(CommandFailed, match="there is no topic ordres"):
        broker.records("ordres")
    with pytest.raises(ConfigError, match="cannot read the address"):
        Kafka("localhost")
    with pytest.raises(CommandFailed, match="no server listens at"):
        Kafka("127.0.0.1:1").records("orders")
    with pytest.raises(ValueError, match="has no logins; start a broker with secure=True"):
        assert broker.client


def test_with_a_login() -> None:
    with Broker(secure=True) as broker:
        broker.send("orders", "paid")
        assert [record.value for record in broker.records("orders")] == [b"paid"]
        same = Kafka(broker.bootstrap, broker.client.properties)
        assert [record.value for record in same.records("orders")] == [b"paid"]


def test_only_committed_records_are_read_on_request(broker: Broker) -> None:
    """The same records as with a consumer that reads only committed records, while a transaction is open and after."""
    topic = broker.topic("paid", partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)

    def values(*, committed_only: bool) -> list[bytes | None]:
        return [record.value for record in broker.records(topic, committed_only=committed_only)]

    written: list[bytes] = []
    committed: list[bytes] = []
    for number, commits in enumerate([True, False, True, False, False]):
        written.append(b"%d" % number)
        producer.begin_transaction()
        producer.produce(topic, written[-1])
        assert producer.flush(PATIENCE_S) == 0
        assert (values(committed_only=True), values(committed_only=False)) == (committed, written)
        if commits:
            producer.commit_transaction(PATIENCE_S)
            committed.append(written[-1])
        else:
            producer.abort_transaction(PATIENCE_S)
    broker.send(topic, "plain")
    assert [record.value for record in broker.expect(topic, 3, committed_only=True)] == [*committed, b"plain"]
    with pytest.raises(AssertionError, match="expected 4 records"):
        broker.expect(topic, 4, 0, committed_only=True)


def test_a_record_that_cannot_be_sent_is_refused_with_the_reason(broker: Broker) -> None:
    topic = broker.topic(create=True)
    with pytest.raises(ValueError, match="has no partition -1: it has 1"):
        broker.send(topic, "x", partition=-1)
    wrong: Any = [("trace", b"a1")]
    with pytest.raises(TypeError, match="headers is a mapping, such as"):
        broker.send(topic, "x", headers=wrong)
    with pytest.raises(ValueError, match="timestamp_ms=-1: must be from 0 to"):
        broker.send(topic, "x", timestamp_ms=-1)
    with pytest.raises(ValueError, match=f"timestamp_ms={TIMESTAMP_MS_MAX + 1}: must be from 0 to"):
        broker.send(topic, "x", timestamp_ms=TIMESTAMP_MS_MAX + 1)
    with pytest.raises(KafkaError, match="INVALID_TIMESTAMP"):
        broker.send(topic, "x", timestamp_ms=TIMESTAMP_MS_MAX)
    assert broker.records(topic) == []


def test_arguments_of_wrong_types_are_refused_with_the_reason(broker: Broker) -> None:
    topic = broker.topic(create=True)
    some: Any = broker
    attempts: list[tuple[Callable[[], object], str]] = [
        (lambda: some.expect(topic, "3"), "count='3': give a whole number, not str"),
        (lambda: some.expect(b"x", 3), "topic=b'x': give text, not bytes"),
        (lambda: some.send(topic, 5), "a value is 5: give text, bytes or None, not int"),
        (lambda: some.send(topic, "x", key=5), "key is 5: give text, bytes or None"),
        (lambda: some.send(topic, "x", headers={"a": 1}), "the header a is 1: give text, bytes or None"),
        (lambda: some.send(topic, "x", headers={1: "a"}), "the name of a header=1: give text"),
        (lambda: some.send(topic, "x", timestamp_ms=1.5), "timestamp_ms=1.5: give a whole number"),
        (lambda: some.send(topic, "x", partition="0"), "partition='0': give a whole number"),
        (lambda: some.topic(5), "prefix=5: give text"),
        (lambda: some.topic(config=[1]), "config is a mapping, such as {'retention.ms': 1000}, not list"),
        (lambda: some.topic(partitions="3"), "partitions='3': give a whole number"),
        (lambda: some.group(5), "prefix=5: give text"),
        (lambda: some.delete_records(topic, [0]), "before is a mapping, such as {0: 100}, not list"),
        (lambda: some.move_coordinator(5, 1), "group=5: give text"),
        (lambda: some.cut("1", 2).__enter__(), "node='1': give a whole number"),
        (lambda: Kafka(some), "bootstrap=.*: give text, not Broker"),
    ]
    for attempt, told in attempts:
        with pytest.raises(TypeError, match=told if ".*" in told else re.escape(told)):
            attempt()
    assert broker.records(topic) == []
