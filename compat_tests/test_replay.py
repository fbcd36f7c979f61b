"""Traffic of stock clients, recorded on a broker of the test kit and replayed against the target."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer

from compat_tests.conftest import Running
from kpybroker.testing import Broker, Kafka

PATIENCE_S = 30


@pytest.fixture(scope="module")
def source() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def values(kafka: Kafka, topic: str) -> list[bytes | None]:
    return [record.value for record in kafka.records(topic, committed_only=True)]


def confluent(bootstrap: str, topic: str) -> None:
    """Transactions with compression, one of them aborted, and a group that commits offsets."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-id", "compression.type": "lz4"})
    producer.init_transactions()
    for number, action in enumerate(
        (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction)
    ):
        producer.begin_transaction()
        producer.produce(topic, str(number), partition=0)
        action()
    settings = {"group.id": topic, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": bootstrap, "enable.auto.commit": False, **settings})
    consumer.subscribe([topic])
    message = consumer.poll(PATIENCE_S)
    assert message is not None
    consumer.commit(message, asynchronous=False)
    consumer.close()


def kafka_python(bootstrap: str, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    for number in (0, 2):
        producer.send(topic, str(number).encode()).get(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest")
    next(iter(consumer))
    consumer.commit()
    consumer.close()


def aiokafka(bootstrap: str, topic: str) -> None:
    async def scenario() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
            for number in (0, 2):
                await producer.send_and_wait(topic, str(number).encode())
        reader = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest")
        async with reader as consumer:
            await asyncio.wait_for(consumer.getone(), PATIENCE_S)
            await consumer.commit()

    asyncio.run(scenario())


def consumer_protocol(bootstrap: str, topic: str) -> None:
    """A group of KIP-848."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in (0, 2):
        producer.produce(topic, str(number))
        assert producer.flush(PATIENCE_S) == 0
    settings = {"group.id": topic, "auto.offset.reset": "earliest", "group.protocol": "consumer"}
    consumer = Consumer({"bootstrap.servers": bootstrap, "enable.auto.commit": False, **settings})
    consumer.subscribe([topic])
    message = consumer.poll(PATIENCE_S)
    assert message is not None
    consumer.commit(message, asynchronous=False)
    consumer.close()


@pytest.mark.parametrize("client", [confluent, consumer_protocol, kafka_python, aiokafka])
def test_a_recording_has_the_same_effect_on_the_target(client, source: Broker, broker: Running) -> None:
    topic = source.topic(client.__name__)
    with source.record() as recording:
        client(source.bootstrap, topic)
    replay = recording.replay(broker.bootstrap)
    assert not replay.differences, replay.table()
    target = Kafka(broker.bootstrap)
    assert values(target, topic) == values(source, topic) == [b"0", b"2"]
    assert target.committed(topic, topic) == source.committed(topic, topic) != {}
