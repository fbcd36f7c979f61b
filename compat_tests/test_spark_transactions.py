"""Tests that Spark reads transactional topics with `kafka.isolation.level=read_committed`, and reads no record of an
aborted transaction."""

import uuid
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from oracle.target import Target

PARTITIONS = 2
TURNS = 12
IN_A_TURN = 25


@pytest.fixture
def topic(target: Target) -> str:
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    name = f"transactional-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, PARTITIONS)])[name].result(30)
    return name


class Source:
    """Writes transactions to a topic, every third of them aborted; the numbers in the records show which."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.committed: list[int] = []
        self._topic = topic
        self._next = 0
        self._producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0})
        self._producer.init_transactions(30)

    def send(self, turns: int = TURNS) -> None:
        for turn in range(turns):
            numbers = self._begin()
            if turn % 3 == 1:
                self._producer.abort_transaction(30)
            else:
                self._producer.commit_transaction(30)
                self.committed += numbers

    def leave_open(self) -> None:
        """Write records that must not be visible yet."""
        self._begin()

    def close_open(self) -> None:
        self._producer.abort_transaction(30)

    def _begin(self) -> range:
        numbers = range(self._next, self._next + IN_A_TURN)
        self._next = numbers.stop
        self._producer.begin_transaction()
        for number in numbers:
            self._producer.produce(self._topic, str(number), partition=number % PARTITIONS)
        assert self._producer.flush(30) == 0
        return numbers


def options(target: Target, topic: str, isolation: str = "read_committed") -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": target.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "kafka.isolation.level": isolation,
    }


def numbers(records: DataFrame) -> list[int]:
    return sorted(row[0] for row in records.select(F.col("value").cast("string").cast("long")).collect())


@pytest.mark.parametrize("split", [{}, {"minPartitions": "6"}])
def test_a_batch_reads_committed_records(
    spark: SparkSession, target: Target, topic: str, split: dict[str, str]
) -> None:
    source = Source(target.bootstrap, topic)
    source.send()
    source.leave_open()
    read = spark.read.format("kafka").options(**options(target, topic), **split)
    assert numbers(read.load()) == source.committed
    everything = spark.read.format("kafka").options(**options(target, topic, "read_uncommitted"))
    assert len(numbers(everything.load())) == (TURNS + 1) * IN_A_TURN
    source.close_open()
    assert numbers(read.load()) == source.committed


def test_a_stream_reads_committed_records_once(spark: SparkSession, target: Target, topic: str, tmp_path: Path) -> None:
    """The ranges of the stream may end between two records of an aborted transaction. Each run continues from the
    checkpoint."""
    source = Source(target.bootstrap, topic)
    for _ in range(3):
        source.send()
        records = spark.readStream.format("kafka").options(**options(target, topic), maxOffsetsPerTrigger="70").load()
        query = (
            records.writeStream.format("parquet")
            .options(path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert numbers(spark.read.parquet(str(tmp_path / "out"))) == source.committed
