"""Tests that Spark's own connector reads and writes: by offsets, by timestamp, in batches and as a stream. All tests
share one session."""

import json
import uuid
from pathlib import Path

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from compat_tests.spark_patience import QUICK
from oracle.target import Target

FIRST_MS = 1_700_000_000_000
STEP_MS = 1_000
COUNT = 500
PARTITIONS = 2

Row = tuple[int, int, bytes | None, bytes | None, int, list[tuple[str, bytes | None]] | None]


@pytest.fixture(scope="module")
def admin(target: Target) -> AdminClient:
    return AdminClient({"bootstrap.servers": target.bootstrap})


def new_topic(admin: AdminClient, **settings: str) -> str:
    # the default retention would delete its records
    topic = NewTopic(f"spark-{uuid.uuid4().hex[:8]}", PARTITIONS, config={"retention.ms": "-1", **settings})
    admin.create_topics([topic])[topic.topic].result()
    return topic.topic


def send(bootstrap: str, topic: str, count: int = COUNT, first: int = 0) -> list[Row]:
    """Send records with the numbers first, first + 1, ..., in batches. Each batch is one second later than the previous
    one, and is sent to the next partition."""
    refused: list[KafkaError] = []
    rows: list[Row] = []
    in_order = {"enable.idempotence": True, "linger.ms": 50, "batch.num.messages": 40}
    producer = Producer({"bootstrap.servers": bootstrap, **in_order})
    for number in range(first, first + count):
        key = None if number % 7 == 0 else f"k{number}".encode()
        value = None if number % 11 == 0 else f"v{number}".encode()
        headers = [("n", str(number).encode()), ("n", b""), ("none", None)] if number % 3 == 0 else None
        offset, partition = divmod(number, PARTITIONS)
        timestamp = FIRST_MS + number * STEP_MS
        producer.produce(
            topic,
            value,
            key,
            partition,
            timestamp=timestamp,
            headers=headers or [],
            on_delivery=lambda error, _: refused.append(error) if error else None,
        )
        rows.append((partition, offset, key, value, timestamp, headers))
    assert producer.flush(30) == 0
    assert refused == []
    return rows


@pytest.fixture(scope="module")
def sent(target: Target, admin: AdminClient) -> tuple[str, list[Row]]:
    topic = new_topic(admin)
    return topic, send(target.bootstrap, topic)


def read(spark: SparkSession, target: Target, topic: str, **options: str) -> DataFrame:
    kafka = {"kafka.bootstrap.servers": target.bootstrap, "subscribe": topic, "includeHeaders": "true", **QUICK}
    return spark.read.format("kafka").options(**{**kafka, **options}).load()


def rows_of(records: DataFrame) -> list[Row]:
    """The rows that Spark read, in the order in which they were sent."""
    found = [
        (
            row.partition,
            row.offset,
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            row.ms,
            row.headers
            and [(header.key, None if header.value is None else bytes(header.value)) for header in row.headers],
        )
        for row in records.withColumn("ms", F.unix_millis("timestamp")).collect()
    ]
    return sorted(found, key=lambda row: (row[1], row[0]))


def stored(target: Target, topic: str) -> list[tuple[int, bytes | None, bytes | None, object]]:
    """(partition, key, value, headers) of all records of a topic, read with confluent-kafka."""
    consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": "unused", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found = []
    open_partitions = set(range(PARTITIONS))
    while open_partitions:
        message = consumer.poll(30)
        assert message is not None, f"no more records; {open_partitions} not read to the end"
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            open_partitions.discard(message.partition())
            continue
        assert message.timestamp()[0] == TIMESTAMP_CREATE_TIME
        found.append((message.partition(), message.key(), message.value(), message.headers()))
    consumer.close()
    return found


def test_batch_reads_every_field(spark: SparkSession, target: Target, sent: tuple[str, list[Row]]) -> None:
    topic, rows = sent
    records = read(spark, target, topic)
    assert rows_of(records) == rows
    assert [tuple(row) for row in records.select("topic", "timestampType").distinct().collect()] == [(topic, 0)]


@pytest.mark.parametrize("options", [{}, {"minPartitions": "7"}, {"kafka.isolation.level": "read_committed"}])
def test_batch_by_offsets(
    spark: SparkSession, target: Target, sent: tuple[str, list[Row]], options: dict[str, str]
) -> None:
    topic, rows = sent
    start, end = {"0": 17, "1": -2}, {"0": 101, "1": 5}  # -2: from the earliest
    found = read(
        spark,
        target,
        topic,
        startingOffsets=json.dumps({topic: start}),
        endingOffsets=json.dumps({topic: end}),
        **options,
    )
    wanted = [row for row in rows if start[str(row[0])] <= row[1] < end[str(row[0])]]
    assert rows_of(found) == wanted


def test_batch_by_timestamp(spark: SparkSession, target: Target, sent: tuple[str, list[Row]]) -> None:
    topic, rows = sent
    start, end = FIRST_MS + 33 * STEP_MS - 1, FIRST_MS + 250 * STEP_MS  # inside batches, the first between two records
    found = read(spark, target, topic, startingTimestamp=str(start), endingTimestamp=str(end))
    assert rows_of(found) == rows[33:250]


def test_batch_by_timestamp_of_each_partition(spark: SparkSession, target: Target, sent: tuple[str, list[Row]]) -> None:
    topic, rows = sent
    start = {"0": FIRST_MS + 100 * STEP_MS, "1": FIRST_MS + 300 * STEP_MS}
    after_all = FIRST_MS + 10 * COUNT * STEP_MS  # no record is that new: up to the end
    found = read(
        spark,
        target,
        topic,
        startingOffsetsByTimestamp=json.dumps({topic: start}),
        endingOffsetsByTimestamp=json.dumps({topic: {"0": after_all, "1": FIRST_MS + 400 * STEP_MS}}),
    )
    first, last = {0: 100, 1: 300}, {0: COUNT, 1: 400}
    assert rows_of(found) == [row for number, row in enumerate(rows) if first[row[0]] <= number < last[row[0]]]


def test_a_time_after_the_last_record_is_an_error_or_the_end(
    spark: SparkSession, target: Target, sent: tuple[str, list[Row]]
) -> None:
    topic, _ = sent
    future = {"startingTimestamp": str(FIRST_MS + 10 * COUNT * STEP_MS)}
    with pytest.raises(PySparkException, match=r"(?i)no offset matched"):
        read(spark, target, topic, **future).count()
    assert read(spark, target, topic, **future, startingOffsetsByTimestampStrategy="latest").count() == 0


def test_a_batch_starts_at_the_log_start(spark: SparkSession, target: Target, admin: AdminClient) -> None:
    topic = new_topic(admin)
    rows = send(target.bootstrap, topic)
    deleted = [TopicPartition(topic, 0, 40), TopicPartition(topic, 1, 3)]
    for future in admin.delete_records(deleted).values():
        future.result()
    start = {partition.partition: partition.offset for partition in deleted}
    assert rows_of(read(spark, target, topic)) == [row for row in rows if row[1] >= start[row[0]]]


def test_batch_reads_topics_by_pattern(spark: SparkSession, target: Target, admin: AdminClient) -> None:
    one, two = new_topic(admin), new_topic(admin)
    send(target.bootstrap, one, 10)
    send(target.bootstrap, two, 20)
    kafka = {"kafka.bootstrap.servers": target.bootstrap, "subscribePattern": f"{one}|{two}", **QUICK}
    found = spark.read.format("kafka").options(**kafka).load().groupBy("topic").count()
    assert {row["topic"]: row["count"] for row in found.collect()} == {one: 10, two: 20}


def test_a_missing_topic_is_named(spark: SparkSession, target: Target) -> None:
    with pytest.raises(Py4JJavaError, match="UnknownTopicOrPartitionException"):
        read(spark, target, f"absent-{uuid.uuid4().hex}").count()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_is_written_completely(spark: SparkSession, target: Target, admin: AdminClient, codec: str) -> None:
    topic = new_topic(admin)
    headers = "array<struct<key: string, value: binary>>"
    schema = f"key binary, value binary, partition int, headers {headers}"
    rows = [
        (b"key", b"value", 0, [("a", b"1"), ("a", b"2"), ("none", None)]),
        (None, b"no key", 1, None),
        (b"no value", None, 1, None),
        (b"", b"", 0, None),
        (b"large", bytes(range(256)) * 2000, 1, None),
    ]
    options = {"kafka.bootstrap.servers": target.bootstrap, "kafka.compression.type": codec, "includeHeaders": "true"}
    frame = spark.createDataFrame(rows, schema).withColumn("topic", F.lit(topic))
    frame.write.format("kafka").options(**options).save()
    found = [(key, value, partition, headers) for partition, key, value, headers in stored(target, topic)]
    assert sorted(found, key=repr) == sorted(rows, key=repr)


def test_a_partition_without_records_gives_no_rows(spark: SparkSession, target: Target, admin: AdminClient) -> None:
    topic = new_topic(admin)
    assert read(spark, target, topic).count() == 0
    send(target.bootstrap, topic, 1)
    assert read(spark, target, topic).count() == 1


def test_a_stream_continues_from_its_checkpoint(
    spark: SparkSession, target: Target, admin: AdminClient, tmp_path: Path
) -> None:
    """Each run reads the records since the previous one, and a file sink holds every record once."""
    topic = new_topic(admin)
    rows: list[Row] = []
    kafka = {"kafka.bootstrap.servers": target.bootstrap, "subscribe": topic, "startingOffsets": "earliest", **QUICK}
    for _ in range(3):
        rows += send(target.bootstrap, topic, 100, first=len(rows))
        records = (
            spark.readStream.format("kafka").options(**kafka, includeHeaders="true", maxOffsetsPerTrigger="60").load()
        )
        query = (
            records.writeStream.format("parquet")
            .options(path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        assert rows_of(spark.read.parquet(str(tmp_path / "out"))) == rows


def test_a_running_stream_copies_records_to_another_topic(
    spark: SparkSession, target: Target, admin: AdminClient, tmp_path: Path
) -> None:
    source, sink = new_topic(admin), new_topic(admin)
    kafka = {"kafka.bootstrap.servers": target.bootstrap, **QUICK}
    records = spark.readStream.format("kafka").options(**kafka, subscribe=source, startingOffsets="earliest").load()
    query = (
        records.select("key", "value", "partition")
        .writeStream.format("kafka")
        .options(**kafka, topic=sink, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    rows = send(target.bootstrap, source)
    query.processAllAvailable()
    rows += send(target.bootstrap, source, first=COUNT)
    query.processAllAvailable()
    query.stop()
    found = [(partition, key, value) for partition, key, value, _ in stored(target, sink)]
    assert sorted(found, key=repr) == sorted(((row[0], row[2], row[3]) for row in rows), key=repr)


def test_a_stream_reports_deleted_records(
    spark: SparkSession, target: Target, admin: AdminClient, tmp_path: Path
) -> None:
    """Records are deleted between two runs. With failOnDataLoss the query fails; without, it continues with the
    remaining records."""
    topic = new_topic(admin)
    send(target.bootstrap, topic, 20)
    kafka = {"kafka.bootstrap.servers": target.bootstrap, "subscribe": topic, "startingOffsets": "earliest", **QUICK}

    def run(**options: str) -> None:
        records = spark.readStream.format("kafka").options(**{**kafka, **options}).load()
        sink = records.writeStream.format("parquet").trigger(availableNow=True)
        query = sink.start(str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint"))
        query.awaitTermination(60)

    run()
    send(target.bootstrap, topic, 20, first=20)
    for future in admin.delete_records([TopicPartition(topic, 0, 15)]).values():
        future.result()
    with pytest.raises(StreamingQueryException, match="failOnDataLoss"):
        run()
    run(failOnDataLoss="false")
    offsets = spark.read.parquet(str(tmp_path / "out")).where("partition = 0").select("offset").collect()
    assert sorted(row.offset for row in offsets) == [*range(10), *range(15, 20)]
