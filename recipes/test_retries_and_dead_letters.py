"""Retries and dead letters: what fails is tried again after a growing delay, and after three attempts it is put aside.

The consumer sends the record to its topic again with the header `deliver-after`, or to the dead letter topic, before it
commits the offset; a crash between the two makes a duplicate but loses nothing. A service passes delays of minutes; the
tests pass milliseconds.
"""

import asyncio
import subprocess
import sys

import aiokafka
import confluent_kafka
import kafka
import pytest

DELAYS = ("20ms", "40ms")
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


def onward(topic, partition, offset, headers, dead_letters, error):
    """Where a failed record goes, and its headers there: those of KIP-1191, with which `kpybroker dlq` reads it."""
    before = dict(headers or ())
    attempts = int(before.get("__dlq.errors.delivery.count", b"0")) + 1
    kept = [(name, value) for name, value in headers or () if not name.startswith(("__dlq.", "deliver-"))]
    kept += [
        ("__dlq.errors.topic", before.get("__dlq.errors.topic", topic.encode())),
        ("__dlq.errors.partition", before.get("__dlq.errors.partition", b"%d" % partition)),
        ("__dlq.errors.offset", before.get("__dlq.errors.offset", b"%d" % offset)),
        ("__dlq.errors.delivery.count", b"%d" % attempts),
        ("__dlq.errors.message", str(error).encode()),
    ]
    if attempts > len(DELAYS):
        return dead_letters, kept
    return topic, [*kept, ("deliver-after", DELAYS[attempts - 1].encode())]


def with_confluent_kafka(bootstrap, group, orders, dead_letters, pay, records):
    """Process this number of records, the retried ones included."""
    settings = {"bootstrap.servers": bootstrap}
    producer = confluent_kafka.Producer(settings)
    consumer = confluent_kafka.Consumer(
        {**settings, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([orders])
    try:
        for _ in range(records):
            message = consumer.poll(TIMEOUT_S)
            try:
                pay(message.value())
            except ConnectionError as error:
                place = message.topic(), message.partition(), message.offset()
                topic, headers = onward(*place, message.headers(), dead_letters, error)
                pass_on(producer, topic, message, headers)
            consumer.commit(message, asynchronous=False)
    finally:
        consumer.close()


def pass_on(producer, topic, message, headers):
    """Write the record and wait until it is acknowledged. `flush` alone does not tell whether it was refused."""
    errors = []
    producer.produce(
        topic,
        message.value(),
        message.key(),
        headers=headers,
        on_delivery=lambda error, _: errors.append(error),
    )
    producer.flush(TIMEOUT_S)
    if len(errors) != 1 or errors[0] is not None:
        raise confluent_kafka.KafkaException(*errors)


def with_kafka_python(bootstrap, group, orders, dead_letters, pay, records):
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
    consumer = kafka.KafkaConsumer(
        orders,
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
            except ConnectionError as error:
                place = record.topic, record.partition, record.offset
                topic, headers = onward(*place, record.headers, dead_letters, error)
                producer.send(topic, record.value, record.key, headers=headers).get(TIMEOUT_S)
            consumer.commit()
    finally:
        consumer.close()
        producer.close()


def with_aiokafka(bootstrap, group, orders, dead_letters, pay, records):
    async def consume():
        consumer = aiokafka.AIOKafkaConsumer(
            orders,
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
                except ConnectionError as error:
                    place = record.topic, record.partition, record.offset
                    topic, headers = onward(*place, record.headers, dead_letters, error)
                    await producer.send_and_wait(topic, record.value, record.key, headers=headers)
                await consumer.commit()

    asyncio.run(consume())


CLIENTS = [with_confluent_kafka, with_kafka_python, with_aiokafka]
ERRORS = (confluent_kafka.KafkaException, kafka.errors.KafkaError, aiokafka.errors.KafkaError)
SCHEDULED = {"kpybroker.delivery.scheduled": "true"}


@pytest.fixture
def orders(kpybroker):
    return kpybroker.topic("orders", partitions=1, config=SCHEDULED)


@pytest.fixture
def dead_letters(kpybroker):
    return kpybroker.topic("dlq.orders", partitions=1)


@pytest.mark.parametrize("process", CLIENTS)
def test_what_fails_is_tried_three_times(kpybroker, orders, dead_letters, process):
    group, payments = kpybroker.group(), Payments()
    kpybroker.send(orders, "1", "2", "3", "4")
    process(kpybroker.bootstrap, group, orders, dead_letters, payments.pay, records=4 + 1 + 2)
    assert payments.paid == [b"1", b"2", b"4"]
    assert (payments.calls.count(b"2"), payments.calls.count(b"3")) == (2, 3)
    (dead,) = kpybroker.records(dead_letters)
    assert dead.value == b"3"
    assert dict(dead.headers) == {
        "__dlq.errors.topic": orders.encode(),
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"2",
        "__dlq.errors.delivery.count": b"3",
        "__dlq.errors.message": b"payments are down",
    }
    kpybroker.wait_until_read(group, orders)


@pytest.mark.parametrize("process", CLIENTS)
def test_a_dead_letter_that_went_home_is_tried_again(kpybroker, orders, dead_letters, process):
    """Its attempts are counted from the start."""
    group, payments = kpybroker.group(), Payments()
    kpybroker.send(orders, "3")
    process(kpybroker.bootstrap, group, orders, dead_letters, payments.pay, records=3)
    command = [sys.executable, "-m", "kpybroker", "dlq", "redrive", dead_letters, "--execute"]
    subprocess.run([*command, "--bootstrap", kpybroker.bootstrap], check=True)
    process(kpybroker.bootstrap, group, orders, dead_letters, payments.pay, records=3)
    assert payments.calls == [b"3"] * 6
    first, second = (dict(dead.headers) for dead in kpybroker.records(dead_letters))
    assert first["__dlq.errors.offset"] != second["__dlq.errors.offset"], "it came home with another offset"
    assert first["__dlq.errors.delivery.count"] == second["__dlq.errors.delivery.count"] == b"3"


@pytest.mark.parametrize("process", CLIENTS)
def test_nothing_is_lost_if_the_retry_is_refused(kpybroker, orders, dead_letters, process):
    group, payments = kpybroker.group(), Payments()
    kpybroker.send(orders, "1", "2")
    refusal = kpybroker.fault("Produce", error="TOPIC_AUTHORIZATION_FAILED", topic=orders)
    with refusal as fault, pytest.raises(ERRORS):
        process(kpybroker.bootstrap, group, orders, dead_letters, payments.pay, records=2)
    assert fault.hits > 0
    assert kpybroker.committed(group, orders) == {0: 1}
    process(kpybroker.bootstrap, group, orders, dead_letters, payments.pay, records=1)
    assert payments.paid == [b"1", b"2"]
