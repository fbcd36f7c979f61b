"""A record that the consumer cannot read: it goes to a dead letter topic, and the records behind it are processed.

Without this, the consumer fails at the same record after each restart, and its lag grows for good.
"""

import asyncio

import aiokafka
import confluent_kafka
import kafka
import pytest

ORDERS = ["1", "2", "not a number", "4"]


def with_confluent_kafka(bootstrap, orders, dead_letters, group):
    """Add up all orders."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    consumer.subscribe([orders])
    total = 0
    for _ in ORDERS:
        message = consumer.poll(10)
        try:
            total += int(message.value())
        except ValueError as error:
            producer.produce(dead_letters, message.value(), message.key(), headers={"error": str(error)})
            assert producer.flush(10) == 0  # before the commit, so that the record is in one of the two topics
        consumer.commit(message, asynchronous=False)
    consumer.close()
    return total


def with_kafka_python(bootstrap, orders, dead_letters, group):
    consumer = kafka.KafkaConsumer(
        orders, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
    total = 0
    for _ in ORDERS:
        record = next(consumer)
        try:
            total += int(record.value)
        except ValueError as error:
            headers = [("error", str(error).encode())]
            producer.send(dead_letters, record.value, record.key, headers=headers).get(10)
        consumer.commit()
    consumer.close()
    producer.close()
    return total


def with_aiokafka(bootstrap, orders, dead_letters, group):
    async def consume():
        consumer = aiokafka.AIOKafkaConsumer(
            orders, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        )
        total = 0
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap) as producer, consumer:
            for _ in ORDERS:
                record = await asyncio.wait_for(consumer.getone(), 10)
                try:
                    total += int(record.value)
                except ValueError as error:
                    headers = [("error", str(error).encode())]
                    await producer.send_and_wait(dead_letters, record.value, record.key, headers=headers)
                await consumer.commit()
        return total

    return asyncio.run(consume())


@pytest.mark.parametrize("add_up", [with_confluent_kafka, with_kafka_python, with_aiokafka])
def test_the_records_behind_it_are_processed(kpybroker, add_up):
    orders, dead_letters = kpybroker.topic("orders", partitions=1), kpybroker.topic("dead-letters", partitions=1)
    group = kpybroker.group()
    kpybroker.send(orders, *ORDERS, key="7")
    assert add_up(kpybroker.bootstrap, orders, dead_letters, group) == 1 + 2 + 4
    (dead,) = kpybroker.records(dead_letters)
    assert (dead.key, dead.value) == (b"7", b"not a number")
    assert b"invalid literal" in dict(dead.headers)["error"]
    kpybroker.wait_until_read(group, orders)
