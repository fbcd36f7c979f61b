"""Groups clicks in a shop into visits: session windows over events that arrive late, twice, or too late.

    python -m spark_examples.clickstream_sessions [--bootstrap 127.0.0.1:9092] [--command-config FILE] [--workdir DIR]

A visit continues if its user clicks again within GAP. Clicks arrive up to LATENESS after their time; a click that
arrives twice counts once. Clicks behind the watermark are dropped, because their visit has already been written. The
stream runs once for each period, always with the same checkpoint, and its Parquet files have every visit once.
"""

import json
import random
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from kpybroker.spark import QUICK_JVM, Cluster, checkpoint, session
from spark_examples.feeding import Record, create_topics, send
from spark_examples.running import command_line

SEED = 2013
START = datetime(2026, 3, 1, tzinfo=UTC)
GAP = timedelta(minutes=30)
LATENESS = timedelta(hours=2)
PERIOD = timedelta(hours=8)
PERIODS = 4
USERS = 200
CLICK = "id string, user string, at timestamp, cents long"
VISIT = ["user", "start", "end", "clicks", "cents"]


class Click(NamedTuple):
    id: str
    user: str
    at: datetime
    cents: int
    """The amount of a purchase, mostly 0."""


class Feed(NamedTuple):
    """The clicks that arrive before one run of the stream, in this order."""

    clicks: list[Click]
    """Clicks that are in time, some of them twice."""
    too_late: list[Click]
    """Clicks behind the watermark."""


def main(cluster: Cluster, workdir: Path) -> pd.DataFrame:
    """Feed and run the stream several times. Returns the visits, with columns VISIT."""
    spark = session(cluster, settings=QUICK_JVM)
    topic = f"clicks-{uuid.uuid4().hex[:6]}"
    create_topics(cluster, topic)
    dropped = 0
    for feed in feeds():
        send(cluster, topic, map(record_of, [*feed.clicks, *feed.too_late]))
        dropped += take_visits(spark, cluster, topic, workdir)
    print(f"{dropped:,} clicks came too late and were dropped")
    return spark.read.parquet(str(workdir / "visits")).orderBy("user", "start").toPandas()


def take_visits(spark: SparkSession, cluster: Cluster, topic: str, workdir: Path) -> int:
    """Read new clicks and write the finished visits. Returns the number of clicks that were too late."""
    kafka = {**cluster.spark_options(), "subscribe": topic, "startingOffsets": "earliest"}
    records = spark.readStream.format("kafka").options(**kafka).load()
    visits = (
        records.select(F.from_json(F.col("value").cast("string"), CLICK).alias("click"))
        .select("click.*")
        .withWatermark("at", f"{LATENESS.seconds} seconds")
        .dropDuplicatesWithinWatermark(["id"])
        .groupBy("user", F.session_window("at", f"{GAP.seconds} seconds").alias("window"))
        .agg(F.count("*").alias("clicks"), F.sum("cents").alias("cents"))
        .select("user", "window.start", "window.end", "clicks", "cents")
    )
    query = (
        visits.writeStream.format("parquet")
        .options(path=str(workdir / "visits"), checkpointLocation=checkpoint(workdir / "checkpoint", cluster, topic))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    states = [state for progress in query.recentProgress for state in progress.stateOperators]
    return sum(state.numRowsDroppedByWatermark for state in states)


def record_of(click: Click) -> Record:
    value = json.dumps({**click._asdict(), "at": click.at.isoformat()})
    return Record(value, key=click.user, timestamp_ms=int(click.at.timestamp() * 1000))


def feeds() -> Iterator[Feed]:
    """The clicks of each period, and a click a day later that ends all visits; the same in every run."""
    chance = random.Random(SEED)
    arrivals = [(click.at + LATENESS * chance.random(), click) for click in clicks_of_the_day(chance)]
    arrivals += [(click.at + LATENESS * chance.random(), click) for _, click in arrivals[::20]]  # arrive twice
    arrivals.sort()
    for period in range(1, PERIODS + 1):
        start, end = START + (period - 1) * PERIOD, START + period * PERIOD
        of_now = [click for arrived, click in arrivals if start <= arrived < end]
        of_old = [Click(f"late{n}", f"u{n:03}", START, 1) for n in range(20)] if period == PERIODS else []
        yield Feed(of_now, of_old)
    yield Feed([Click("last", "nobody", START + (PERIODS + 3) * PERIOD, 0)], [])


def clicks_of_the_day(chance: random.Random) -> Iterator[Click]:
    number = 0
    for user in range(USERS):
        at = START + PERIOD * chance.random()
        for _ in range(chance.randint(1, 30)):
            cents = chance.choice([0, 0, 0, 0, chance.randint(100, 9999)])
            yield Click(f"c{number}", f"u{user:03}", at, cents)
            number += 1
            at += timedelta(seconds=chance.randint(1, 2400))  # sometimes longer than the gap


if __name__ == "__main__":
    command_line(main, __doc__)
