"""Tests of the options of Spark's connector that the other tests do not use, and of topics that change during a
query."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from compat_tests.conftest import MakeTopic
from compat_tests.spark_patience import QUICK
from oracle.target import Target

LARGE_BYTES = 3_000_000


@pytest.fixture
def producer(target: Target) -> Iterator[Producer]:
    producer = Producer({"bootstrap.servers": target.bootstrap, "message.max.bytes": 2 * LARGE_BYTES})
    yield producer
    assert producer.flush(0) == 0


def send(producer: Producer, topic: str, numbers: range, partition: int = 0) -> None:
    for number in numbers:
        producer.produce(topic, str(number), partition=partition)
    assert producer.flush(30) == 0


def source(target: Target, **options: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": target.bootstrap, "startingOffsets": "earliest", **QUICK, **options}


def numbers(records: DataFrame) -> list[int]:
    return sorted(row[0] for row in records.select(F.col("value").cast("string").cast("long")).collect())


class Run:
    """One query on one checkpoint, run repeatedly; `numbers` is the content of its sink."""

    def __init__(self, spark: SparkSession, directory: Path, options: dict[str, str]) -> None:
        self._spark = spark
        self._directory = directory
        self._options = options
        self.batches: list[int] = []
        """The number of records in each batch of the last run, without empty batches."""

    def __call__(self) -> list[int]:
        records = self._spark.readStream.format("kafka").options(**self._options).load()
        query = (
            records.writeStream.format("parquet")
            .options(path=str(self._directory / "out"), checkpointLocation=str(self._directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        self.batches = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
        return numbers(self._spark.read.parquet(str(self._directory / "out")))


@pytest.fixture(params=["false", "true"])
def offset_fetching(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[None]:
    """How the driver requests offsets: as an admin client, or as a consumer in a group."""
    setting = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
    spark.conf.set(setting, request.param)
    yield
    spark.conf.unset(setting)


@pytest.mark.usefixtures("offset_fetching")
def test_new_topics_and_partitions_are_read_from_their_start(
    spark: SparkSession, target: Target, producer: Producer, unique: Callable[[], str], tmp_path: Path
) -> None:
    prefix = unique()
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    admin.create_topics([NewTopic(f"{prefix}-a", 1)])[f"{prefix}-a"].result(30)
    send(producer, f"{prefix}-a", range(100))
    run = Run(spark, tmp_path, source(target, subscribePattern=f"{prefix}-.*", **{"kafka.metadata.max.age.ms": "500"}))
    assert run() == list(range(100))

    admin.create_topics([NewTopic(f"{prefix}-b", 2)])[f"{prefix}-b"].result(30)
    admin.create_partitions([NewPartitions(f"{prefix}-a", 2)])[f"{prefix}-a"].result(30)
    producer.poll(0)
    # a new producer, because the earlier one has cached the old number of partitions
    fresh = Producer({"bootstrap.servers": target.bootstrap})
    send(fresh, f"{prefix}-b", range(100, 150), partition=1)
    send(fresh, f"{prefix}-a", range(150, 200), partition=1)
    assert run() == list(range(200))


@pytest.mark.usefixtures("offset_fetching")
def test_some_partitions_only(
    spark: SparkSession, target: Target, producer: Producer, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(3)
    for partition in range(3):
        send(producer, topic, range(100 * partition, 100 * partition + 100), partition)
    options = source(target, assign=json.dumps({topic: [0, 2]}))
    wanted = [*range(100), *range(200, 300)]
    assert numbers(spark.read.format("kafka").options(**options).load()) == wanted
    assert Run(spark, tmp_path, options)() == wanted


def test_batches_of_a_given_size(
    spark: SparkSession, target: Target, producer: Producer, make_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = make_topic(2)
    for partition in range(2):
        send(producer, topic, range(100 * partition, 100 * partition + 100), partition)
    run = Run(spark, tmp_path, source(target, subscribe=topic, maxOffsetsPerTrigger="50"))
    assert run() == list(range(200))
    assert run.batches == [50, 50, 50, 50]


def test_batches_wait_for_a_minimum_of_records(
    spark: SparkSession, target: Target, producer: Producer, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """The first batch runs at once; the next batch runs when there are a hundred records, or after an hour."""
    topic = make_topic(1)
    send(producer, topic, range(10))
    options = source(target, subscribe=topic, minOffsetsPerTrigger="100", maxTriggerDelay="1h")
    records = spark.readStream.format("kafka").options(**options, **{"fetchOffset.retryIntervalMs": "10"}).load()
    paths = {"path": str(tmp_path / "out"), "checkpointLocation": str(tmp_path / "checkpoint")}
    query = records.writeStream.format("parquet").options(**paths).start()
    for first, end, seen in (0, 10, 10), (10, 60, 10), (60, 110, 110):
        if first:
            send(producer, topic, range(first, end))
        query.processAllAvailable()
        assert numbers(spark.read.parquet(paths["path"])) == list(range(seen))
    query.stop()


@pytest.mark.parametrize(
    "options",
    [
        {"minPartitions": "9"},
        {"groupIdPrefix": "mine"},
        {"kafka.group.id": "mine"},
        {"kafka.max.partition.fetch.bytes": "64", "kafkaConsumer.pollTimeoutMs": "10000"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_every_record_is_read_with_every_way_of_fetching(
    spark: SparkSession, target: Target, producer: Producer, make_topic: MakeTopic, options: dict[str, str]
) -> None:
    topic = make_topic(2)
    for partition in range(2):
        send(producer, topic, range(100 * partition, 100 * partition + 100), partition)
    records = spark.read.format("kafka").options(**source(target, subscribe=topic, **options)).load()
    assert numbers(records) == list(range(200))
    if "minPartitions" in options:
        assert records.rdd.getNumPartitions() >= 9


def test_records_of_three_megabytes(spark: SparkSession, target: Target, make_topic: MakeTopic) -> None:
    topic = make_topic(1, max_message_bytes=2 * LARGE_BYTES)
    servers = {"kafka.bootstrap.servers": target.bootstrap}
    value = F.concat(F.col("id").cast("string"), F.rpad(F.lit(""), LARGE_BYTES, "x")).alias("value")
    more = {"topic": topic, "kafka.max.request.size": str(2 * LARGE_BYTES)}
    spark.range(5).select(value).write.format("kafka").options(**servers, **more).save()
    records = spark.read.format("kafka").options(**source(target, subscribe=topic)).load()
    assert sorted(records.select(F.length("value")).collect()) == [(LARGE_BYTES + 1,)] * 5
    assert numbers(records.select(F.substring("value", 1, 1).alias("value"))) == list(range(5))


def test_one_sink_for_many_topics(spark: SparkSession, target: Target, make_topic: MakeTopic) -> None:
    """Each row names its topic, and may name its partition."""
    topics = [make_topic(2) for _ in range(3)]
    rows = [(str(number), topics[number % 3], number % 2) for number in range(60)]
    frame = spark.createDataFrame(rows, "value string, topic string, partition int")
    frame.write.format("kafka").options(**{"kafka.bootstrap.servers": target.bootstrap}).save()
    found = spark.read.format("kafka").options(**source(target, subscribe=",".join(topics))).load()
    fields = found.select(F.col("value").cast("string"), "topic", "partition").collect()
    assert sorted(map(tuple, fields)) == sorted(rows)
