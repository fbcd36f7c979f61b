"""A record that the consumer cannot read: it goes to a dead letter topic, and the records behind it are processed.

Without this, the consumer fails at the same record after each restart, and its lag grows for good. If the dead letter
topic refuses the record, the consumer must fail before it commits, or the record is lost.
"""

import asyncio

import aiokafka
import confluent_kafka
import kafka
import pytest

ORDERS = ["1", "2", "not a number", "4"]
TIMEOUT_S = 10


def with_confluent_kafka(bootstrap, orders, dead_letters, group, count):
    """Add up this number of orders."""
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
    try:
        for _ in range(count):
            message = consumer.poll(TIMEOUT_S)
            try:
                total += int(message.value())
            except ValueError as error:
                put_aside(producer, dead_letters, message, str(error))
            consumer.commit(message, asynchronous=False)
    finally:
        consumer.close()
    return total


def put_aside(producer, topic, message, reason):
    """Write the record and wait until it is acknowledged. `flush` alone does not tell whether it was refused."""
    errors = []
    producer.produce(
        topic,
        message.value(),
        message.key(),
        headers={"error": reason},
        on_delivery=lambda error, _: errors.append(error),
    )
    producer.flush(TIMEOUT_S)
    if errors != [None]:
        raise confluent_kafka.KafkaException(*errors)


def with_kafka_python(bootstrap, orders, dead_letters, group, count):
    consumer = kafka.KafkaConsumer(
        orders,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=TIMEOUT_S * 1000,
    )
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
    total = 0
    try:
        for _ in range(count):
            record = next(consumer)
            try:
                total += int(record.value)
            except ValueError as error:
                headers = [("error", str(error).encode())]
                producer.send(dead_letters, record.value, record.key, headers=headers).get(TIMEOUT_S)
            consumer.commit()
    finally:
        consumer.close()
        producer.close()
    return total


def with_aiokafka(bootstrap, orders, dead_letters, group, count):
    async def consume():
        consumer = aiokafka.AIOKafkaConsumer(
            orders, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        )
        total = 0
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap) as producer, consumer:
            for _ in range(count):
                record = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
                try:
                    total += int(record.value)
                except ValueError as error:
                    headers = [("error", str(error).encode())]
                    await producer.send_and_wait(dead_letters, record.value, record.key, headers=headers)
                await consumer.commit()
        return total

    return asyncio.run(consume())


CLIENTS = [with_confluent_kafka, with_kafka_python, with_aiokafka]
ERRORS = (confluent_kafka.KafkaException, kafka.errors.KafkaError, aiokafka.errors.KafkaError)


@pytest.mark.parametrize("add_up", CLIENTS)
def test_the_records_behind_it_are_processed(kpybroker, add_up):
    orders, dead_letters = kpybroker.topic("orders", partitions=1), kpybroker.topic("dead-letters", partitions=1)
    group = kpybroker.group()
    kpybroker.send(orders, *ORDERS, key="7")
    assert add_up(kpybroker.bootstrap, orders, dead_letters, group, len(ORDERS)) == 1 + 2 + 4
    (dead,) = kpybroker.records(dead_letters)
    assert (dead.key, dead.value) == (b"7", b"not a number")
    assert b"invalid literal" in dict(dead.headers)["error"]
    kpybroker.wait_until_read(group, orders)


@pytest.mark.parametrize("add_up", CLIENTS)
def test_it_is_not_lost_if_it_cannot_be_put_aside(kpybroker, add_up):
    orders, dead_letters = kpybroker.topic("orders", partitions=1), kpybroker.topic("dead-letters", partitions=1)
    group = kpybroker.group()
    kpybroker.send(orders, *ORDERS)
    refusal = kpybroker.fault("Produce", error="TOPIC_AUTHORIZATION_FAILED", topic=dead_letters)
    with refusal as fault, pytest.raises(ERRORS):
        add_up(kpybroker.bootstrap, orders, dead_letters, group, len(ORDERS))
    assert fault.hits > 0
    assert kpybroker.committed(group, orders) == {0: 2}
    assert add_up(kpybroker.bootstrap, orders, dead_letters, group, 2) == 4
    assert [record.value for record in kpybroker.records(dead_letters)] == [b"not a number"]
