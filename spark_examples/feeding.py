"""Creates the topics of an example, and sends its input records."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kpybroker.spark import Cluster

FLUSH_EVERY = 20_000
"""Records between flushes; librdkafka queues at most 100,000."""


class Record(NamedTuple):
    """A record to send. `timestamp_ms` 0 means the current time; `partition` -1 means the partition of the key."""

    value: bytes | str | None
    key: bytes | str | None = None
    timestamp_ms: int = 0
    headers: Sequence[tuple[str, bytes | None]] = ()
    partition: int = -1


def create_topics(
    cluster: Cluster, *names: str, partitions: int = 4, settings: Mapping[str, str] | None = None
) -> None:
    """Create topics with unlimited retention, because the examples' records are old, unless `settings` override it."""
    admin = AdminClient(cluster.confluent_settings())
    config = {"retention.ms": "-1", **(settings or {})}
    topics = [NewTopic(name, partitions, config=config) for name in names]
    for created in admin.create_topics(topics).values():
        created.result(30)


def send(cluster: Cluster, topic: str, records: Iterable[Record]) -> int:
    """Send records in order, idempotently. Returns their number. Raises SystemExit if the broker refuses a record."""
    refused: list[KafkaError] = []

    def acknowledged(error: KafkaError | None, _: Message) -> None:
        if error:
            refused.append(error)

    producer = Producer({**cluster.confluent_settings(), "enable.idempotence": True, "compression.type": "lz4"})
    count = 0
    for count, (value, key, timestamp_ms, headers, partition) in enumerate(records, 1):
        more = {"headers": list(headers)} if headers else {}
        producer.produce(topic, value, key, partition, timestamp=timestamp_ms, on_delivery=acknowledged, **more)
        if count % FLUSH_EVERY == 0:
            producer.flush()
    producer.flush()
    if refused:
        raise SystemExit(
            f"{len(refused):,} of {count:,} records were not acknowledged, the first because: {refused[0]}"
        )
    return count
