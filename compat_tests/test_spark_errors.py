"""Tests that bad input to a Spark job ends with an error that `kpybroker.spark.explained` summarises in one clear
line."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from compat_tests.conftest import MakeTopic
from compat_tests.spark_patience import QUICK
from kpybroker.spark import explained
from oracle.target import Target

RECORDS = 20


@pytest.fixture
def topic(target: Target, make_topic: MakeTopic) -> str:
    """One partition with RECORDS records, the first ten of which are deleted."""
    name = make_topic()
    producer = Producer({"bootstrap.servers": target.bootstrap})
    for number in range(RECORDS):
        producer.produce(name, str(number), timestamp=1_700_000_000_000)
    assert producer.flush(30) == 0
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    for deleted in admin.delete_records([TopicPartition(name, 0, 10)]).values():
        deleted.result(10)
    return name


def line_of(action: Callable[[], object]) -> str:
    with pytest.raises((PySparkException, Py4JJavaError)) as caught:
        action()
    line = explained(caught.value)
    assert "\n" not in line
    return line


@pytest.fixture
def read(spark: SparkSession, target: Target) -> Callable[..., DataFrame]:
    def read(topic: str, **options: str) -> DataFrame:
        kafka = {"kafka.bootstrap.servers": target.bootstrap, "subscribe": topic, **QUICK, **options}
        return spark.read.format("kafka").options(**kafka).load()

    return read


def test_a_missing_topic(read: Callable[..., DataFrame], unique: Callable[[], str]) -> None:
    assert "a topic to read does not exist" in line_of(read(unique()).count)


@pytest.mark.parametrize("offsets", [(3, 15), (12, 45)], ids=["deleted", "never written"])
def test_offsets_outside_the_topic(read: Callable[..., DataFrame], topic: str, offsets: tuple[int, int]) -> None:
    start, end = (json.dumps({topic: {"0": offset}}) for offset in offsets)
    assert "are not in the topic" in line_of(
        read(topic, startingOffsets=start, endingOffsets=end, **{"kafkaConsumer.pollTimeoutMs": "3000"}).count
    )


def test_a_time_after_the_last_record(read: Callable[..., DataFrame], topic: str) -> None:
    line = line_of(read(topic, startingTimestamp="1800000000000").count)
    assert "no record is as new" in line


def test_a_checkpoint_ahead_of_its_topic(
    spark: SparkSession, target: Target, topic: str, tmp_path: Path, make_topic: MakeTopic
) -> None:
    """This happens when a cluster was set up again: a topic with that name exists, but is shorter."""

    def run() -> None:
        kafka = {"kafka.bootstrap.servers": target.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        records = spark.readStream.format("kafka").options(**kafka).load()
        sink = records.writeStream.format("parquet").trigger(availableNow=True)
        sink.start(str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint")).awaitTermination()

    run()
    for noted in (tmp_path / "checkpoint" / "offsets").glob("[0-9]*"):
        lines = noted.read_text().splitlines()
        noted.write_text("\n".join([*lines[:-1], json.dumps({topic: {"0": RECORDS + 5}})]))
    for checksum in (tmp_path / "checkpoint" / "offsets").glob(".*.crc"):
        checksum.unlink()
    assert "the checkpoint is for another topic" in line_of(run)
