"""Forwards records from a topic to others exactly once, in transactions, which Spark's Kafka sink does not support."""

from collections.abc import Callable, Iterable

from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import Row

from kpybroker.archive.replaying import committed
from kpybroker.spark import Cluster
from spark_examples.feeding import Record

TIMEOUT_S = 30


class Forwarder:
    """Writes records that were read from `source`. read_committed consumers see the output of each record once.

    A transaction contains the output records and the position in the source, as offsets of the group (KIP-98). So a
    batch that runs again, after a failure or without its checkpoint, skips the records that have already been
    forwarded. A group has one forwarder at a time: a new forwarder fences earlier ones, and aborts their open
    transactions.
    """

    def __init__(self, cluster: Cluster, source: str, partitions: int, group: str) -> None:
        self._places = [TopicPartition(source, partition) for partition in range(partitions)]
        self._consumer = Consumer({**cluster.confluent_settings(), "group.id": group})
        self._producer = Producer({**cluster.confluent_settings(), "transactional.id": group})
        self._producer.init_transactions(TIMEOUT_S)

    def close(self) -> None:
        self._consumer.close()
        del self._producer  # the threads of the producer end when it is deleted

    def forward(self, rows: Iterable[Row], onward: Callable[[Row], tuple[str, Record]]) -> list[Row]:
        """Write the (topic, record) of each row that has not been forwarded yet, in the order of the rows.

        Rows have the columns of Spark's Kafka source, with ascending offsets within a partition.
        """
        settled = [place.offset for place in committed(self._consumer, self._places)]
        new = [row for row in rows if row.offset >= settled[row.partition]]
        if not new:
            return []
        self._producer.begin_transaction()
        for topic, (value, key, _, headers, _) in map(onward, new):
            named = [(name, plain(value)) for name, value in headers]
            self._producer.produce(topic, plain(value), plain(key), headers=named)
        ends = {row.partition: row.offset + 1 for row in new}
        positions = [TopicPartition(self._places[0].topic, partition, end) for partition, end in ends.items()]
        self._producer.send_offsets_to_transaction(positions, self._consumer.consumer_group_metadata(), TIMEOUT_S)
        self._producer.commit_transaction(TIMEOUT_S)
        return new


def plain(value: bytes | bytearray | str | None) -> bytes | str | None:
    """Convert a value to bytes for librdkafka, because Spark before 4.1 returns bytearrays."""
    return bytes(value) if isinstance(value, bytearray) else value
