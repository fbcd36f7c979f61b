"""Tests that the report equals sums that pandas computes from the package's own table, and that a second backfill
leaves every row unchanged."""

import re
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's own documentation uses

from kpybroker.spark import Cluster
from oracle.target import Target
from spark_examples import backfill_by_timestamp
from spark_examples.backfill_by_timestamp import AIRPORTS, LATENESS, REPORTED, by_timestamp, departures, millis
from spark_examples.feeding import create_topics, send
from spark_examples.flights_table import flights

pytestmark = pytest.mark.full


def expected() -> pd.DataFrame:
    table = flights()
    table = table[table["departure"].between(*REPORTED, inclusive="left")]
    groups = table.assign(hour=table["departure"].dt.strftime("%Y-%m-%dT%H")).groupby(["origin", "hour", "carrier"])
    delays = groups["dep_delay"].sum(min_count=1)  # as in SQL: a sum of nothing is null, rather than 0
    return groups.size().rename("flights").to_frame().join(delays).reset_index()


def test_every_hour_has_its_flights_once(
    spark: SparkSession, target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = backfill_by_timestamp.main(Cluster(target.bootstrap), tmp_path)
    pd.testing.assert_frame_equal(found, expected(), check_dtype=False)
    told = capsys.readouterr().out
    late = re.search(r"(\d+) flights were too late", told)
    assert late is not None
    assert int(late[1]) == sum(left >= REPORTED[1] for left in reported())
    assert int(late[1]) > 0
    assert "the report is the same" in told


def reported() -> list[pd.Timestamp]:
    """The departure times of the flights in the reported hours."""
    start_ms, end_ms = map(millis, REPORTED)
    return [left for left, sent in departures() if start_ms <= sent.timestamp_ms < end_ms]


def test_without_the_lateness_some_flights_are_missed(
    spark: SparkSession, target: Target, unique: Callable[[], str]
) -> None:
    topic = unique()
    create_topics(Cluster(target.bootstrap), topic, partitions=len(AIRPORTS))
    send(Cluster(target.bootstrap), topic, (record for _, record in departures()))

    def count(**options: str) -> int:
        kafka = {"kafka.bootstrap.servers": target.bootstrap, "subscribe": topic}
        kafka |= by_timestamp(topic, dict.fromkeys(range(len(AIRPORTS)), REPORTED)) | options
        time = F.col("timestamp")
        of_the_hours = (time >= F.lit(REPORTED[0])) & (time < F.lit(REPORTED[1]))
        return spark.read.format("kafka").options(**kafka).load().where(of_the_hours).count()

    assert count() == len(reported())
    assert count(endingTimestamp=str(millis(REPORTED[1]))) < len(reported())


def test_no_flight_is_later_than_the_lateness() -> None:
    for partition in range(len(AIRPORTS)):
        times_ms = [sent.timestamp_ms for _, sent in departures() if sent.partition == partition]
        behind_ms = [before - now for before, now in zip(accumulate(times_ms, max), times_ms, strict=True)]
        assert 0 < max(behind_ms) < LATENESS.total_seconds() * 1000
