"""A slow broker: the producer must slow down too, instead of filling its memory or dropping records.

librdkafka has a queue of bounded length, and `produce` raises BufferError when it is full. With the others, a service
bounds the number of records that are not acknowledged itself.
"""

import asyncio
from collections import deque

import aiokafka
import confluent_kafka
import kafka
import pytest

ORDERS = [str(number).encode() for number in range(100)]
PENDING_MAX = 10
SLOW_S = 0.02


class Pressure:
    """How often the producer had to wait, and the most records that were pending."""

    def __init__(self):
        self.waits = 0
        self.most = 0

    def sees(self, pending):
        self.most = max(self.most, pending)


def with_confluent_kafka(bootstrap, topic, pressure):
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": PENDING_MAX})
    for order in ORDERS:
        while True:
            try:
                producer.produce(topic, order)
                break
            except BufferError:
                pressure.waits += 1
                producer.poll(1)  # until something is acknowledged
        pressure.sees(len(producer))
    assert producer.flush(30) == 0


def with_kafka_python(bootstrap, topic, pressure):
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
    pending = deque()
    for order in ORDERS:
        if len(pending) == PENDING_MAX:
            pressure.waits += 1
            pending.popleft().get(30)
        pending.append(producer.send(topic, order))
        pressure.sees(len(pending))
    for each in pending:
        each.get(30)
    producer.close()


def with_aiokafka(bootstrap, topic, pressure):
    async def send():
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            pending = deque()
            for order in ORDERS:
                if len(pending) == PENDING_MAX:
                    pressure.waits += 1
                    await pending.popleft()
                pending.append(await producer.send(topic, order))
                pressure.sees(len(pending))
            await asyncio.gather(*pending)

    asyncio.run(send())


@pytest.mark.parametrize("send", [with_confluent_kafka, with_kafka_python, with_aiokafka])
def test_the_producer_slows_down_and_loses_nothing(kpybroker, send):
    topic, pressure = kpybroker.topic("orders", partitions=1), Pressure()
    with kpybroker.fault("Produce", delay_s=SLOW_S, topic=topic) as fault:
        send(kpybroker.bootstrap, topic, pressure)
    assert fault.hits > 0
    assert pressure.waits > 0
    assert pressure.most <= PENDING_MAX
    assert [record.value for record in kpybroker.records(topic)] == ORDERS
