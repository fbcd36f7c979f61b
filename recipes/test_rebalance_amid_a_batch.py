"""A rebalance while a batch is processed: the commit is refused, and the records come again.

A consumer that stops there, or that commits before it processes, loses records. The test removes the consumer from its
group in the middle of the first batch, as if it had been too slow.
"""

import asyncio
import contextlib

import aiokafka
import confluent_kafka
import kafka
import pytest

ORDERS = [str(number) for number in range(20)]
BATCHES_MAX = 50


class WithConfluentKafka:
    """Processes a batch at a time, then commits it."""

    def __init__(self, bootstrap, topic, group):
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self.consumer.subscribe([topic])

    def work(self, process):
        messages = self.consumer.consume(len(ORDERS), timeout=1)
        for message in messages:
            process(message.value())
        if messages:
            # after a rebalance the commit is refused, and these records come again
            with contextlib.suppress(confluent_kafka.KafkaException):
                self.consumer.commit(asynchronous=False)

    def close(self):
        self.consumer.close()


class WithKafkaPython:
    def __init__(self, bootstrap, topic, group):
        self.consumer = kafka.KafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        )

    def work(self, process):
        batch = self.consumer.poll(timeout_ms=1000)
        for records in batch.values():
            for record in records:
                process(record.value)
        if batch:
            with contextlib.suppress(kafka.errors.KafkaError):
                self.consumer.commit()

    def close(self):
        self.consumer.close()


class WithAiokafka:
    def __init__(self, bootstrap, topic, group):
        self.runner = asyncio.Runner()
        self.runner.run(self.start(bootstrap, topic, group))

    async def start(self, bootstrap, topic, group):
        self.consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await self.consumer.start()

    def work(self, process):
        self.runner.run(self.work_async(process))

    async def work_async(self, process):
        batch = await self.consumer.getmany(timeout_ms=1000)
        for records in batch.values():
            for record in records:
                process(record.value)
        if batch:
            with contextlib.suppress(aiokafka.errors.KafkaError):
                await self.consumer.commit()

    def close(self):
        self.runner.run(self.consumer.stop())
        self.runner.close()


@pytest.mark.parametrize("worker", [WithConfluentKafka, WithKafkaPython, WithAiokafka])
def test_nothing_is_lost(kpybroker, worker):
    topic, group = kpybroker.topic("orders", partitions=1), kpybroker.group()
    kpybroker.send(topic, *ORDERS)
    processed, removed = [], []

    def process(value):
        processed.append(value.decode())
        if len(processed) == len(ORDERS) // 2:
            removed.extend(kpybroker.remove_members(group))

    consumer = worker(kpybroker.bootstrap, topic, group)
    for _ in range(BATCHES_MAX):
        consumer.work(process)
        if kpybroker.lag(group, topic) == 0:
            break
    consumer.close()
    assert len(removed) == 1
    assert sorted(set(processed), key=int) == ORDERS
    assert len(processed) > len(ORDERS), "what was not committed is processed again"
    kpybroker.wait_until_read(group, topic)
