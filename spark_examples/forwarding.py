"""From a topic on to others, each record once: in transactions, which Spark's own sink does not know."""

from collections.abc import Callable, Iterable

from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import Row

from kpybroker.archive.replaying import committed
from spark_examples.feeding import Record

TIMEOUT_S = 30


class Forwarder:
    """Writes on what was read from `source`; readers of what is committed see each record's successor once.

    A transaction holds what is written, and how far the source was read by that, as offsets of the group (KIP-98). A
    batch that runs again, after a failure or without its checkpoint, so finds what of it is settled. There is one
    forwarder of a group at a time: a new one shuts out those before, and aborts what they left open.
    """

    def __init__(self, bootstrap: str, source: str, partitions: int, group: str) -> None:
        self._places = [TopicPartition(source, partition) for partition in range(partitions)]
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": group})
        self._producer.init_transactions(TIMEOUT_S)

    def close(self) -> None:
        self._consumer.close()
        del self._producer  # its threads end with it

    def forward(self, rows: Iterable[Row], onward: Callable[[Row], tuple[str, Record]]) -> list[Row]:
        """Write (topic, record) of each row, in the order of the rows; those that were not settled before.

        Rows have the columns of Spark's Kafka source, and ascend by offset within a partition.
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
    """What librdkafka takes; Spark before 4.1 gives bytearrays."""
    return bytes(value) if isinstance(value, bytearray) else value
