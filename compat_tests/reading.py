"""Reads a whole topic with confluent-kafka."""

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition


def stored(bootstrap: str, topic: str) -> list[Message]:
    """All committed records of a topic, in order within a partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.partition.eof": True})
    partitions = consumer.list_topics(topic, 30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found = []
    left = len(partitions)
    while left:
        message = consumer.poll(30)
        assert message is not None, f"no more records; {left} partitions of {topic} not read to the end"
        if message.error() is None:
            found.append(message)
            continue
        assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
        left -= 1
    consumer.close()
    return found
