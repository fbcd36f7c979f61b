"""Retries and dead letters: what fails is tried again behind the others, and after three attempts it is put aside.

A header counts the attempts. The record is written to the retry topic, or to the dead letter topic, before its offset
is committed; a crash between the two makes a duplicate but loses nothing.
"""

import asyncio

import aiokafka
import confluent_kafka
import kafka
import pytest

ATTEMPTS = 3
TIMEOUT_S = 10


class Payments:
    """A service that is down for the first attempt of order 2, and refuses order 3 each time."""

    def __init__(self):
        self.calls = []

    def pay(self, order):
        self.calls.append(order)
        if order == b"3" or (order == b"2" and self.calls.count(order) == 1):
            raise ConnectionError("payments are down")

    @property
    def paid(self):
        return [order for order in (b"1", b"2", b"3", b"4") if order in self.calls and order != b"3"]


def next_topic(headers, retries, dead_letters):
    """Where a failed record goes, and the number of its attempts so far."""
    attempts = int(dict(headers or ()).get("attempts", b"0")) + 1
    return (dead_letters if attempts == ATTEMPTS else retries), attempts


def with_confluent_kafka(bootstrap, group, orders, retries, dead_letters, pay, records):
    """Process this number of records from both topics."""
    settings = {"bootstrap.servers": bootstrap}
    producer = confluent_kafka.Producer(settings)
    consumer = confluent_kafka.Consumer(
        {**settings, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([orders, retries])
    try:
        for _ in range(records):
            message = consumer.poll(TIMEOUT_S)
            try:
                pay(message.value())
            except ConnectionError:
                topic, attempts = next_topic(message.headers(), retries, dead_letters)
                pass_on(producer, topic, message, attempts)
            consumer.commit(message, asynchronous=False)
    finally:
        consumer.close()


def pass_on(producer, topic, message, attempts):
    """Write the record and wait until it is acknowledged. `flush` alone does not tell whether it was refused."""
    errors = []
    producer.produce(
        topic,
        message.value(),
        headers={"attempts": str(attempts)},
        on_delivery=lambda error, _: errors.append(error),
    )
    producer.flush(TIMEOUT_S)
    if errors != [None]:
        raise confluent_kafka.KafkaException(*errors)


def with_kafka_python(bootstrap, group, orders, retries, dead_letters, pay, records):
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
    consumer = kafka.KafkaConsumer(
        orders,
        retries,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=1,
        consumer_timeout_ms=TIMEOUT_S * 1000,
    )
    try:
        for _ in range(records):
            record = next(consumer)
            try:
                pay(record.value)
            except ConnectionError:
                topic, attempts = next_topic(record.headers, retries, dead_letters)
                headers = [("attempts", str(attempts).encode())]
                producer.send(topic, record.value, headers=headers).get(TIMEOUT_S)
            consumer.commit()
    finally:
        consumer.close()
        producer.close()


def with_aiokafka(bootstrap, group, orders, retries, dead_letters, pay, records):
    async def consume():
        consumer = aiokafka.AIOKafkaConsumer(
            orders,
            retries,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap) as producer, consumer:
            for _ in range(records):
                record = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
                try:
                    pay(record.value)
                except ConnectionError:
                    topic, attempts = next_topic(record.headers, retries, dead_letters)
                    headers = [("attempts", str(attempts).encode())]
                    await producer.send_and_wait(topic, record.value, headers=headers)
                await consumer.commit()

    asyncio.run(consume())


CLIENTS = [with_confluent_kafka, with_kafka_python, with_aiokafka]
ERRORS = (confluent_kafka.KafkaException, kafka.errors.KafkaError, aiokafka.errors.KafkaError)


@pytest.mark.parametrize("process", CLIENTS)
def test_what_fails_is_tried_three_times(kpybroker, process):
    orders, retries, dead_letters = (kpybroker.topic(name, partitions=1) for name in ("orders", "retries", "dead"))
    group, payments = kpybroker.group(), Payments()
    kpybroker.send(orders, "1", "2", "3", "4")
    process(kpybroker.bootstrap, group, orders, retries, dead_letters, payments.pay, records=4 + 1 + 2)
    assert payments.paid == [b"1", b"2", b"4"]
    assert (payments.calls.count(b"2"), payments.calls.count(b"3")) == (2, ATTEMPTS)
    (dead,) = kpybroker.records(dead_letters)
    assert (dead.value, dict(dead.headers)) == (b"3", {"attempts": b"3"})
    for topic in (orders, retries):
        kpybroker.wait_until_read(group, topic)


@pytest.mark.parametrize("process", CLIENTS)
def test_nothing_is_lost_if_the_retry_topic_refuses_it(kpybroker, process):
    orders, retries, dead_letters = (kpybroker.topic(name, partitions=1) for name in ("orders", "retries", "dead"))
    group, payments = kpybroker.group(), Payments()
    kpybroker.send(orders, "1", "2")
    refusal = kpybroker.fault("Produce", error="TOPIC_AUTHORIZATION_FAILED", topic=retries)
    with refusal as fault, pytest.raises(ERRORS):
        process(kpybroker.bootstrap, group, orders, retries, dead_letters, payments.pay, records=2)
    assert fault.hits > 0
    assert kpybroker.committed(group, orders) == {0: 1}
    process(kpybroker.bootstrap, group, orders, retries, dead_letters, payments.pay, records=1)
    assert payments.paid == [b"1", b"2"]
