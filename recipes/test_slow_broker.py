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

ORDERS = [str(number).encode() for number in range(50)]
PENDING_MAX = 10
SLOW_S = 0.1


class Orders:
    """Orders in memory. Each time one is taken, it looks how many of those taken before are not yet in the topic."""

    def __init__(self, broker, topic):
        self.broker, self.topic = broker, topic
        self.most = 0

    def __iter__(self):
        for taken, order in enumerate(ORDERS):
            self.most = max(self.most, taken - len(self.broker.records(self.topic)))
            yield order


def with_confluent_kafka(bootstrap, topic, orders):
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "queue.buffering.max.messages": PENDING_MAX})
    for order in orders:
        while True:
            try:
                producer.produce(topic, order)
                break
            except BufferError:
                producer.poll(1)  # until something is acknowledged
    assert producer.flush(30) == 0


def with_kafka_python(bootstrap, topic, orders):
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap)
    pending = deque()
    for order in orders:
        if len(pending) == PENDING_MAX:
            pending.popleft().get(30)
        pending.append(producer.send(topic, order))
    for each in pending:
        each.get(30)
    producer.close()


def with_aiokafka(bootstrap, topic, orders):
    async def send():
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            pending = deque()
            for order in orders:
                if len(pending) == PENDING_MAX:
                    await pending.popleft()
                pending.append(await producer.send(topic, order))
            await asyncio.gather(*pending)

    asyncio.run(send())


@pytest.mark.parametrize("send", [with_confluent_kafka, with_kafka_python, with_aiokafka])
def test_the_producer_slows_down_and_loses_nothing(kpybroker, send):
    topic = kpybroker.topic("orders", partitions=1)
    orders = Orders(kpybroker, topic)
    with kpybroker.fault("Produce", delay_s=SLOW_S, topic=topic) as fault:
        send(kpybroker.bootstrap, topic, orders)
    assert fault.hits > 0
    assert orders.most <= PENDING_MAX
    assert [record.value for record in kpybroker.records(topic)] == ORDERS
