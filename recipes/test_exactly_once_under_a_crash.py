"""Exactly once: a service reads orders, writes shipments, and crashes in the middle of a transaction.

The shipments and the offsets of the orders are in one transaction. The next run has the same transactional id, so the
broker aborts what the crashed one has left. A reader with `isolation.level=read_committed` sees each shipment once.
"""

import asyncio

import aiokafka
import confluent_kafka
import kafka
import pytest

ORDERS = ["1", "2", "3"]


class Crash(Exception):
    """The process dies here: nothing is closed or aborted."""


def no_crash():
    pass


def crash():
    raise Crash


def with_confluent_kafka(bootstrap, orders, shipments, group, count, before_commit):
    """Ship this number of orders, each in a transaction of its own."""
    settings = {"bootstrap.servers": bootstrap}
    producer = confluent_kafka.Producer({**settings, "transactional.id": group})
    producer.init_transactions(30)
    consumer = confluent_kafka.Consumer(
        {**settings, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([orders])
    for _ in range(count):
        message = consumer.poll(10)
        producer.begin_transaction()
        producer.produce(shipments, message.value())
        producer.flush(10)
        before_commit()
        next_offsets = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(next_offsets, consumer.consumer_group_metadata(), 10)
        producer.commit_transaction(10)
    consumer.close()


def with_kafka_python(bootstrap, orders, shipments, group, count, before_commit):
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, transactional_id=group)
    producer.init_transactions()
    consumer = kafka.KafkaConsumer(
        orders,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_timeout_ms=10_000,
    )
    for _ in range(count):
        record = next(consumer)
        producer.begin_transaction()
        producer.send(shipments, record.value)
        producer.flush(10)
        before_commit()
        next_offset = kafka.OffsetAndMetadata(record.offset + 1, "", -1)
        partition = kafka.TopicPartition(record.topic, record.partition)
        producer.send_offsets_to_transaction({partition: next_offset}, group)
        producer.commit_transaction()
    consumer.close()
    producer.close()


def with_aiokafka(bootstrap, orders, shipments, group, count, before_commit):
    async def ship():
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=group)
        consumer = aiokafka.AIOKafkaConsumer(
            orders, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await producer.start()
        await consumer.start()
        for _ in range(count):
            record = await asyncio.wait_for(consumer.getone(), 10)
            await producer.begin_transaction()
            await producer.send_and_wait(shipments, record.value)
            before_commit()
            partition = aiokafka.TopicPartition(record.topic, record.partition)
            await producer.send_offsets_to_transaction({partition: record.offset + 1}, group)
            await producer.commit_transaction()
        await consumer.stop()
        await producer.stop()

    asyncio.run(ship())


@pytest.mark.parametrize("ship", [with_confluent_kafka, with_kafka_python, with_aiokafka])
def test_each_order_is_shipped_once(kpybroker, ship):
    orders, shipments = kpybroker.topic("orders", partitions=1), kpybroker.topic("shipments", partitions=1)
    group = kpybroker.group()
    kpybroker.send(orders, *ORDERS)
    with kpybroker.record() as recording:
        with pytest.raises(Crash):
            ship(kpybroker.bootstrap, orders, shipments, group, len(ORDERS), crash)
        assert [record.value for record in kpybroker.records(shipments)] == [b"1"]
        kpybroker.remove_members(group)  # as if its session had ended, which takes 45 s
        ship(kpybroker.bootstrap, orders, shipments, group, len(ORDERS), no_crash)
    recording.none("OffsetCommit", group=group)  # an offset outside of the transaction would survive its abort
    shipped = kpybroker.records(shipments, committed_only=True)
    assert [record.value.decode() for record in shipped] == ORDERS
    assert len([record.value for record in kpybroker.records(shipments)]) == len(ORDERS) + 1, "one was aborted"
    kpybroker.wait_until_read(group, orders)
