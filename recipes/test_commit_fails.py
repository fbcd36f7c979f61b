"""The commit fails: the consumer must end or try again, and the next one processes the same records.

A consumer that carries on as if it had committed is found out here, and so is one that commits before it processes.
"""

import asyncio

import aiokafka
import confluent_kafka
import kafka
import pytest


def with_confluent_kafka(bootstrap, topic, group, process):
    """Process one record and commit it."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    try:
        message = consumer.poll(10)
        process(message.value())
        consumer.commit(message, asynchronous=False)
    finally:
        consumer.close()


def with_kafka_python(bootstrap, topic, group, process):
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=10_000,
    )
    try:
        process(next(consumer).value)
        consumer.commit()
    finally:
        consumer.close()


def with_aiokafka(bootstrap, topic, group, process):
    async def consume():
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        )
        async with consumer:
            process((await asyncio.wait_for(consumer.getone(), 10)).value)
            await consumer.commit()

    asyncio.run(consume())


ERRORS = (confluent_kafka.KafkaException, kafka.errors.KafkaError, aiokafka.errors.KafkaError)


@pytest.mark.parametrize("consume", [with_confluent_kafka, with_kafka_python, with_aiokafka])
def test_the_record_is_processed_again(kpybroker, consume):
    topic, group = kpybroker.topic("orders", partitions=1), kpybroker.group()
    kpybroker.send(topic, "paid")
    processed = []
    refusal = kpybroker.fault("OffsetCommit", error="GROUP_AUTHORIZATION_FAILED", group=group)
    with refusal as fault, pytest.raises(ERRORS):
        consume(kpybroker.bootstrap, topic, group, processed.append)
    assert fault.hits > 0
    assert (processed, kpybroker.committed(group, topic)) == ([b"paid"], {})
    consume(kpybroker.bootstrap, topic, group, processed.append)
    assert (processed, kpybroker.committed(group, topic)) == ([b"paid", b"paid"], {0: 1})
