"""Writes records of an archive back to a topic, in offset order per partition, and exactly once even if it is killed.

A Spark task sends its partitions one after another, in transactions. Each transaction also commits the position in the
archive as an offset of the replay's own group (KIP-98). After a restart, InitProducerId aborts an open transaction, and
the task continues from the committed offset.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from kpybroker.archive import facts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from kpybroker.archive.history import ArchiveHistory
    from kpybroker.archive.manifest import ArchivedFile
    from kpybroker.archive.store import Store
    from kpybroker.spark.cluster import Cluster

REPLAY = "kpybroker-replay-"
"""The prefix of group names and transactional ids, for ACLs."""
RECORDS_MAX = 10_000
"""The most records in one transaction. If a replay is killed, the records of its open transaction are sent again."""
BYTES_MAX = 4 << 20
"""A transaction ends at the first record that exceeds this size. At 14 KB/s, it takes TRANSACTION_S."""
TRANSACTION_S = 300.0
"""The time for which a replay blocks read_committed consumers if it was killed and not restarted."""
Headers = list[tuple[str, str | bytes | None]]
SENT = "partition int, records bigint"
TIMEOUT_S = 60.0
COORDINATOR_IS_AWAY = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)
MESSAGE_BYTES_MAX = 1_000_000_000
"""The highest value that librdkafka allows, so that only the topic's max.message.bytes limits records."""
BUFFER_KB = 65_536


@dataclass(slots=True, frozen=True)
class ReplayScope:
    """Selects records of a topic by offsets [start, end), times in ms [start_ms, end_ms) and partitions; None for
    all."""

    topic: str
    start: int | None = None
    end: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    partitions: tuple[int, ...] = ()

    def has(self, partition: int, file: ArchivedFile) -> bool:
        """Whether the file may have some of these records."""
        return (
            (not self.partitions or partition in self.partitions)
            and (self.start is None or file.last >= self.start)
            and (self.end is None or file.first < self.end)
        )


def files_of(history: ArchiveHistory, wanted: ReplayScope) -> list[str]:
    """Paths of the files that may have selected records."""
    return [
        file.path
        for (topic, partition), file in history.files()
        if topic == wanted.topic and wanted.has(partition, file)
    ]


def name_of_replay(history: ArchiveHistory, wanted: ReplayScope, target_id: str, name: str) -> str:
    """The replay's group and prefix of transactional ids: the same for the same records and the same target topic."""
    assert history.origin is not None, "the topic is in the archive"
    what = repr((history.origin.cluster_id, history.topic_ids[wanted.topic], wanted, target_id, name))
    return f"{REPLAY}{hashlib.sha256(what.encode()).hexdigest()[:16]}"


def select(spark: SparkSession, store: Store, paths: Iterable[str], wanted: ReplayScope) -> DataFrame:
    """The selected records, as `facts.read_files` returns them."""
    millis = F.unix_millis("timestamp")
    conditions = [
        None if wanted.start is None else F.col("offset") >= wanted.start,
        None if wanted.end is None else F.col("offset") < wanted.end,
        None if wanted.start_ms is None else millis >= wanted.start_ms,
        None if wanted.end_ms is None else millis < wanted.end_ms,
    ]
    records = facts.read_files(spark, store.uri, paths)
    return reduce(lambda rows, condition: rows.where(condition), (c for c in conditions if c is not None), records)


class Size(NamedTuple):
    """The number of selected records of a partition, and their first and last offset."""

    records: int
    first: int
    last: int


def sizes_of(records: DataFrame) -> dict[int, Size]:
    """Sizes by partition; partitions without selected records are omitted."""
    found = records.groupBy("partition").agg(F.count("*"), F.min("offset"), F.max("offset"))
    return {row[0]: Size(*row[1:]) for row in found.collect()}


def committed(consumer: Consumer, places: list[TopicPartition]) -> list[TopicPartition]:
    """The group's committed offsets. Unlike librdkafka, waits while the coordinator moves or loads. Raises
    KafkaException."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            found: list[TopicPartition] = consumer.committed(places, timeout=TIMEOUT_S)
            return found
        except KafkaException as refused:
            if refused.args[0].code() not in COORDINATOR_IS_AWAY or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class TopicReplay:
    """Sends records to their partitions in the topic `target`. `group` has the committed position of the replay."""

    def __init__(self, cluster: Cluster, target: str, group: str, sizes: dict[int, Size]) -> None:
        self.total = sum(size.records for size in sizes.values())
        self._settings = cluster.confluent_settings()
        self._target = target
        self._group = group
        self._sizes = sizes

    def run(self, records: DataFrame) -> dict[int, int]:
        """Send the records. Returns the number of records sent now, by partition."""
        millis = F.unix_millis("timestamp").alias("ms")
        parted = records.select("partition", "offset", millis, "key", "value", "headers").repartition(
            len(self._sizes), "partition"
        )
        ordered = parted.sortWithinPartitions("partition", "offset")
        sent = ordered.mapInArrow(_sender(self._settings, self._target, self._group), SENT).collect()
        return {row.partition: row.records for row in sent}

    def done(self) -> int:
        """An estimate of the committed records, including earlier runs. It assumes that records are spread evenly."""
        consumer = Consumer({**self._settings, "group.id": self._group, "log_level": 0})
        try:
            places = [TopicPartition(self._target, partition) for partition in self._sizes]
            done = 0
            for found in committed(consumer, places):
                records, first, last = self._sizes[found.partition]
                done += records * max(0, found.offset - first) // (last + 1 - first)
            return done
        finally:
            consumer.close()


def _sender(
    settings: dict[str, str], target: str, group: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that Spark's Python workers run. kpybroker and confluent-kafka must be installed there."""

    def send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for partition, rows in groupby(_rows(batches), key=lambda row: row[0]):
            records = _Sending(settings, target, group, partition).send(rows)
            columns = [pa.array([partition], pa.int32()), pa.array([records], pa.int64())]
            yield pa.RecordBatch.from_arrays(columns, ["partition", "records"])

    return send


Row = tuple[int, int, int, bytes | None, bytes | None, list[dict[str, Any]] | None]


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class _Sending:
    """Sends one partition with a transactional producer, which fences the producer of an earlier run that was
    killed."""

    def __init__(self, settings: dict[str, str], target: str, group: str, partition: int) -> None:
        self._target = target
        self._partition = partition
        self._producer = Producer(
            {
                **settings,
                "transactional.id": f"{group}-{partition}",
                "compression.type": "lz4",
                "linger.ms": 20,
                "transaction.timeout.ms": int(TRANSACTION_S * 1000),
                "message.max.bytes": MESSAGE_BYTES_MAX,
                "queue.buffering.max.kbytes": BUFFER_KB,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(TIMEOUT_S)
        self._consumer = Consumer({**settings, "group.id": group, "log_level": 0})
        self._from = committed(self._consumer, [TopicPartition(target, partition)])[0].offset

    def send(self, rows: Iterable[Row]) -> int:
        """Send the records from the committed offset onwards. Returns the number of records sent."""
        sent = in_transaction = size_bytes = 0
        last = -1
        for _, offset, ms, key, value, headers in rows:
            if offset < self._from:
                continue
            if not in_transaction:
                self._producer.begin_transaction()
            self._produce(key, value, ms, [(header["key"], header["value"]) for header in headers or ()])
            in_transaction += 1
            size_bytes += len(key or b"") + len(value or b"")
            last = offset
            if in_transaction == RECORDS_MAX or size_bytes >= BYTES_MAX:
                self._commit(last + 1)
                sent, in_transaction, size_bytes = sent + in_transaction, 0, 0
        if in_transaction:
            self._commit(last + 1)
        self._consumer.close()
        return sent + in_transaction

    def _produce(self, key: bytes | None, value: bytes | None, ms: int, headers: Headers) -> None:
        while True:
            try:
                self._producer.produce(self._target, value, key, self._partition, timestamp=ms, headers=headers)
                return
            except BufferError:
                self._producer.poll(1)

    def _commit(self, next_offset: int) -> None:
        places = [TopicPartition(self._target, self._partition, next_offset)]
        self._producer.send_offsets_to_transaction(places, self._consumer.consumer_group_metadata(), TRANSACTION_S)
        self._producer.commit_transaction(TRANSACTION_S)
