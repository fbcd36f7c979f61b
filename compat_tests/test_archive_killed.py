"""If the drivers of an archiver and of a replay are killed with -9, no record is lost or duplicated."""

import random
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from compat_tests.conftest import MakeTopic
from kpybroker.archive import job
from kpybroker.archive.replaying import ReplayScope
from oracle.archiver import command, moment, run_until
from oracle.target import Target

PARTITIONS = 3
COUNT = 60_000
ROUND = 6_000
STEPS = 40
"""A round makes some thirty files and folders."""


def send(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(COUNT):
        producer.produce(topic, str(number), partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def readable(admin: AdminClient, topic: str) -> int:
    """The offsets of a topic, up to the last stable offset of each partition."""
    latest = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(PARTITIONS)}
    return sum(found.result(10).offset for found in admin.list_offsets(latest).values())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.full)])
def test_killed_anywhere(
    spark: SparkSession, target: Target, make_topic: MakeTopic, tmp_path: Path, kills: int
) -> None:
    topic = make_topic(PARTITIONS)
    send(target.bootstrap, topic)
    where, log = tmp_path / "archive", tmp_path / "archive.log"
    chance = random.Random(kills)
    archive = command(target.bootstrap, topic, "--to", str(where), "--round", str(ROUND))
    for _ in range(kills):
        assert run_until(archive, log, moment(where, chance, STEPS)), log.read_text()[-4000:]

    job.copy(lambda: spark, target.bootstrap, str(where), [topic])
    verdict = job.verify(lambda: spark, target.bootstrap, str(where))[1]
    assert verdict.faults == []
    assert verdict.compared == {(topic, partition): COUNT // PARTITIONS for partition in range(PARTITIONS)}
    numbers = F.col("value").cast("string").cast("long")
    found = job.read(spark, str(where)).agg(F.count("*"), F.count_distinct(numbers), F.sum(numbers)).first()
    assert found == (COUNT, COUNT, sum(range(COUNT)))


@pytest.mark.full
def test_a_killed_replay_continues(
    spark: SparkSession, target: Target, admin: AdminClient, make_topic: MakeTopic, tmp_path: Path
) -> None:
    """Each record is written once and in order: the n-th record of partition p has the number n * PARTITIONS + p."""
    topic, back = make_topic(PARTITIONS), make_topic(PARTITIONS)
    send(target.bootstrap, topic)
    where, log = tmp_path / "archive", tmp_path / "archive.log"
    assert not run_until(command(target.bootstrap, topic, "--to", str(where)), log, lambda: False)
    replaying = command(target.bootstrap, "replay", str(where), topic, "--into", back)
    assert run_until(replaying, log, lambda: readable(admin, back) > 0), log.read_text()[-4000:]

    sent = job.replay(lambda: spark, target.bootstrap, str(where), ReplayScope(topic), back)
    assert 0 < sum(now for now, _ in sent.values()) < COUNT, "a part was there before"
    kafka = {"kafka.bootstrap.servers": target.bootstrap, "subscribe": back}
    records = spark.read.format("kafka").options(**kafka, **{"kafka.isolation.level": "read_committed"}).load()
    numbers = F.col("value").cast("string").cast("long")
    at = F.row_number().over(Window.partitionBy("partition").orderBy("offset")) - 1
    placed = records.select(numbers.alias("number"), (at * PARTITIONS + F.col("partition")).alias("due"))
    assert placed.agg(F.count("*"), F.count_if(F.col("number") == F.col("due"))).first() == (COUNT, COUNT)
