"""Creates, inspects and deletes topics for a load with librdkafka's admin client, outside all measurements."""

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bench.measure import LoadError
from bench.target import Target

_numbers = itertools.count(1)
TIMEOUT_S = 30.0
UNLED = (KafkaError._NOENT, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
"""The end offset of a new partition."""


@cache
def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})


def fresh_name(case: str) -> str:
    """A unique topic name."""
    return f"bench-{case}-{os.getpid()}-{next(_numbers)}"


def create_topic(target: Target, topic: str, partitions: int) -> None:
    """Create a topic with the target's replicas, and wait until every partition has a leader."""
    admin = _admin(target.bootstrap)
    settings = {"file.delete.delay.ms": "100"}
    new = NewTopic(topic, partitions, config=settings, **target.placed(partitions))
    admin.create_topics([new], operation_timeout=TIMEOUT_S)[topic].result(TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        shown = admin.list_topics(topic, TIMEOUT_S).topics[topic]
        if len(shown.partitions) == partitions and all(p.leader >= 0 for p in shown.partitions.values()):
            return
        time.sleep(0.01)
    raise LoadError(f"{target.name}: topic {topic} still has no leaders after {TIMEOUT_S:.0f} s")


def delete_topic(target: Target, topic: str) -> None:
    _admin(target.bootstrap).delete_topics([topic], operation_timeout=TIMEOUT_S)[topic].result(TIMEOUT_S)


@contextmanager
def fresh_topic(target: Target, case: str, partitions: int) -> Iterator[str]:
    """A topic for one slice. It is deleted after the slice, unless the slice fails, because its broker may have
    stopped."""
    topic = fresh_name(case)
    create_topic(target, topic, partitions)
    yield topic
    delete_topic(target, topic)


def end_offsets(target: Target, topic: str, partitions: int) -> list[int]:
    """The latest offset of each partition, once librdkafka and the brokers know the leaders."""
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        answers = _admin(target.bootstrap).list_offsets(asked, request_timeout=TIMEOUT_S)
        try:
            return [answers[each].result(TIMEOUT_S).offset for each in asked]
        except KafkaException as refused:
            if refused.args[0].code() not in UNLED or time.monotonic() > deadline:
                raise
            forget()  # on a busy machine, a client may keep for a minute that a new partition has no leader
            time.sleep(0.01)


def forget() -> None:
    """Close the admin clients before their brokers stop."""
    _admin.cache_clear()
