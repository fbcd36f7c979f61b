"""The schema of a compacted topic: records of every version stay in it for good, so readers must know them all.

The topic is a table: the last value of a key counts, and a null deletes it. The test compacts it, and the table must be
the same before and after.
"""

import asyncio
import json

import aiokafka
import confluent_kafka
import kafka
import pytest


def upgraded(value):
    """The newest version of a customer. Version 1 has one field for the name; version 2 has two."""
    customer = json.loads(value)
    if customer["version"] == 1:
        first, _, last = customer["name"].partition(" ")
        return {"version": 2, "first": first, "last": last}
    return customer


def apply(table, key, value):
    if value is None:
        table.pop(key.decode(), None)
    else:
        table[key.decode()] = upgraded(value)


def with_confluent_kafka(bootstrap, topic):
    """Read the whole table."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.partition.eof": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)])
    table = {}
    while True:
        message = consumer.poll(10)
        if message.error() is not None:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            break
        apply(table, message.key(), message.value())
    consumer.close()
    return table


def with_kafka_python(bootstrap, topic):
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap)
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    end, table = consumer.end_offsets([partition])[partition], {}
    while consumer.position(partition) < end:
        for record in consumer.poll(timeout_ms=1000).get(partition, ()):
            apply(table, record.key, record.value)
    consumer.close()
    return table


def with_aiokafka(bootstrap, topic):
    async def read():
        partition, table = aiokafka.TopicPartition(topic, 0), {}
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            end = (await consumer.end_offsets([partition]))[partition]
            while await consumer.position(partition) < end:
                for record in (await consumer.getmany(partition, timeout_ms=1000)).get(partition, ()):
                    apply(table, record.key, record.value)
        return table

    return asyncio.run(read())


@pytest.mark.parametrize("read", [with_confluent_kafka, with_kafka_python, with_aiokafka])
def test_compaction_changes_nothing_for_readers(kpybroker, read):
    topic = kpybroker.topic("customers", partitions=1, config={"cleanup.policy": "compact"})
    kpybroker.send(topic, json.dumps({"version": 1, "name": "Ada Byron"}), key="ada")
    kpybroker.send(topic, json.dumps({"version": 1, "name": "Grace Hopper"}), key="grace")
    kpybroker.send(topic, json.dumps({"version": 1, "name": "Nobody"}), key="nobody")
    kpybroker.send(topic, json.dumps({"version": 2, "first": "Ada", "last": "Lovelace"}), key="ada")
    kpybroker.send(topic, None, key="nobody")
    table = {
        "ada": {"version": 2, "first": "Ada", "last": "Lovelace"},
        "grace": {"version": 2, "first": "Grace", "last": "Hopper"},
    }
    assert read(kpybroker.bootstrap, topic) == table
    kpybroker.compact(topic)
    assert len(kpybroker.records(topic)) == 3  # grace in version 1, ada, and the null that deletes nobody
    assert read(kpybroker.bootstrap, topic) == table
