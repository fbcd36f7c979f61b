"""Tests share consumers with a consumer quota: each acquired record is delivered exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from compat_tests.conftest import MakeTopic, Running, start_target
from compat_tests.share_consumer import ShareConsumer

KB = 1000
RATE = 100 * KB
COUNT = 20
SIZE = 100 * KB
AT_ONCE = 10 * RATE
"""The bytes that a client may fetch at once after it was idle: Kafka averages the rate over eleven windows of one
second each."""
SLACK = 3 * SIZE
"""The bytes by which the last responses may exceed the quota: their throttle time would delay only later requests."""
SETTINGS = {"offsets.topic.num.partitions": "5", "share.coordinator.state.topic.num.partitions": "3"}


@pytest.fixture(scope="module")
def target(target_name: str) -> Iterator[Running]:
    """A separate broker, so that other tests are not throttled."""
    with start_target(target_name, SETTINGS) as broker:
        yield broker


@pytest.mark.full
def test_a_share_consumer_is_held_to_its_rate(
    broker: Running, make_topic: MakeTopic, unique: Callable[[], str], target_name: str
) -> None:
    topic, group = make_topic(), unique()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 1})
    for _ in range(COUNT):
        producer.produce(topic, b"x" * SIZE, partition=0)
    assert producer.flush(30) == 0
    for kind, name, setting in (
        ("groups", group, "share.auto.offset.reset=earliest"),
        ("clients", group, f"consumer_byte_rate={RATE}"),
    ):
        broker.tool(
            "kafka-configs", "--alter", "--entity-type", kind, "--entity-name", name, "--add-config", setting
        ).ok()
    consumer = ShareConsumer(broker.bootstrap, group, topic, client_id=group, fetch_max_bytes=2 * SIZE)
    began = time.monotonic()
    found = consumer.poll_until(COUNT, polls=90)
    took_s = time.monotonic() - began
    consumer.kill()
    assert took_s > (len({record.offset for record in found}) * SIZE - AT_ONCE - SLACK) / RATE
    if target_name == "kpybroker":  # Apache Kafka empties a throttled response, but its records stay acquired
        assert sorted(record.offset for record in found) == list(range(COUNT))
        assert {record.deliveries for record in found} == {1}
