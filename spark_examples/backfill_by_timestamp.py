"""Backfills some hours of a report from a topic, by timestamp: late records are added, and no record is counted twice.

    python -m spark_examples.backfill_by_timestamp [--bootstrap 127.0.0.1:9092] [--command-config FILE] [--workdir DIR]

A flight's record is sent when it leaves, but its timestamp is the planned hour, up to a day earlier, so the topic is
not in order of time. With `startingTimestamp`, the query starts at the first record with that timestamp or a later one;
no record of the requested hours is before it. With `endingTimestamp`, it ends before the first record with that
timestamp or a later one, but records of the requested hours may follow. So `endingTimestamp` is set LATENESS later, and
a filter selects the hours. Each hour of an airport is a folder that is replaced as a whole, so a backfill may be
killed, overlap with others, or be repeated.
"""

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import or_
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from kpybroker.spark import QUICK_JVM, Cluster, session
from spark_examples.feeding import Record, create_topics, send
from spark_examples.flights_table import flights
from spark_examples.running import command_line

AIRPORTS = ["EWR", "JFK", "LGA"]
"""Each airport has a partition."""
FLIGHT = "carrier string, origin string, dep_delay double"
LATENESS = pd.Timedelta(days=1)
"""No flight is sent after one that was planned more than this time later."""
KNOWN = tuple(pd.Timestamp(day, tz="America/New_York") for day in ("2013-01-06", "2013-01-14"))
REPORTED = tuple(pd.Timestamp(day, tz="America/New_York") for day in ("2013-01-08", "2013-01-10"))
Hours = Mapping[int, tuple[pd.Timestamp, pd.Timestamp]]
"""Partition -> hours from the first time up to the second."""


def main(cluster: Cluster, workdir: Path) -> pd.DataFrame:
    """Report two days at midnight, backfill the second day later, then restore lost hours. Returns the report."""
    spark = session(cluster, settings=QUICK_JVM)
    topic = f"flights-{uuid.uuid4().hex[:6]}"
    create_topics(cluster, topic, partitions=len(AIRPORTS))
    report, midnight = workdir / "report", REPORTED[1]
    everything = list(departures())
    send(cluster, topic, (record for left, record in everything if left < midnight))
    backfill(spark, cluster, topic, dict.fromkeys(range(len(AIRPORTS)), REPORTED), report)
    early = read(spark, report)["flights"].sum()

    send(cluster, topic, (record for left, record in everything if left >= midnight))
    late_day = (midnight - LATENESS, midnight)
    backfill(spark, cluster, topic, dict.fromkeys(range(len(AIRPORTS)), late_day), report)
    found = read(spark, report)
    print(f"{found['flights'].sum() - early} flights were too late for the midnight report; the backfill added them")

    lost = {at: (REPORTED[0] + pd.Timedelta(hours=6 + 5 * at), midnight - pd.Timedelta(hours=at)) for at in range(3)}
    for number, (start, end) in lost.items():
        for hour in pd.date_range(start, end, freq="h", inclusive="left"):
            shutil.rmtree(report / f"origin={AIRPORTS[number]}" / f"hour={name_of(hour)}", ignore_errors=True)
    backfill(spark, cluster, topic, lost, report)
    again = read(spark, report)
    print(f"lost hours are restored; the report is {'the same' if again.equals(found) else 'different'}")
    return again


def backfill(spark: SparkSession, cluster: Cluster, topic: str, hours: Hours, report: Path) -> None:
    """Recreate these hours of the report from the topic."""
    records = spark.read.format("kafka").options(**cluster.spark_options(), subscribe=topic)
    records = records.options(**by_timestamp(topic, hours)).load()
    is_wanted = (
        (F.col("partition") == partition) & (F.col("timestamp") >= F.lit(start)) & (F.col("timestamp") < F.lit(end))
        for partition, (start, end) in hours.items()
    )
    rows = (
        records.where(reduce(or_, is_wanted))
        .select("timestamp", F.from_json(F.col("value").cast("string"), FLIGHT).alias("flight"))
        .groupBy("flight.origin", F.date_format("timestamp", "yyyy-MM-dd'T'HH").alias("hour"), "flight.carrier")
        .agg(F.count("*").alias("flights"), F.sum("flight.dep_delay").alias("dep_delay"))
    )
    into_folders = rows.repartition("origin", "hour").write.partitionBy("origin", "hour")
    into_folders.mode("overwrite").option("partitionOverwriteMode", "dynamic").parquet(str(report))


def by_timestamp(topic: str, hours: Hours) -> dict[str, str]:
    """The connector's options: one timestamp if it is the same for all partitions, else one for each partition."""
    starts = {str(partition): millis(start) for partition, (start, _) in hours.items()}
    ends = {str(partition): millis(end + LATENESS) for partition, (_, end) in hours.items()}
    # so that the query does not fail if all records are older
    defaults = {"startingOffsetsByTimestampStrategy": "latest"}
    if len(set(hours.values())) == 1:
        return defaults | {"startingTimestamp": str(starts["0"]), "endingTimestamp": str(ends["0"])}
    return defaults | {
        "startingOffsetsByTimestamp": json.dumps({topic: starts}),
        "endingOffsetsByTimestamp": json.dumps({topic: ends}),
    }


def millis(time: pd.Timestamp) -> int:
    return int(time.timestamp() * 1000)


def name_of(hour: pd.Timestamp) -> str:
    return f"{hour.tz_convert('UTC'):%Y-%m-%dT%H}"


def read(spark: SparkSession, report: Path) -> pd.DataFrame:
    """The report, one row for each airport, hour and carrier."""
    rows = spark.read.schema("carrier string, flights long, dep_delay double, origin string, hour string")
    columns = ["origin", "hour", "carrier", "flights", "dep_delay"]
    return rows.parquet(str(report)).select(columns).orderBy(columns[:3]).toPandas()


def departures() -> Iterator[tuple[pd.Timestamp, Record]]:
    """(departure time, record) of each flight, in this order. Cancelled flights are sent at their planned time."""
    table = flights()
    table = table[table["departure"].between(*KNOWN, inclusive="left")]
    late = pd.to_timedelta(table["minute"] + table["dep_delay"].fillna(0), "min")
    table = table.assign(left=table["departure"] + late).sort_values("left", kind="stable")
    values = table[["carrier", "origin", "dep_delay"]].to_json(orient="records", lines=True).splitlines()
    for left, planned, origin, value in zip(table["left"], table["departure"], table["origin"], values, strict=True):
        yield left, Record(value, timestamp_ms=millis(planned), partition=AIRPORTS.index(origin))


if __name__ == "__main__":
    command_line(main, __doc__)
