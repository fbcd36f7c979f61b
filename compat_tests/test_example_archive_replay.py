"""Tests that the archive has every flight of both months, and that the replay writes the flights of its week, in the
order of each partition."""

from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from kpybroker.spark import Cluster
from oracle.target import Target
from spark_examples import archive_replay
from spark_examples.archive_replay import MONTHS, WEEK
from spark_examples.flights_table import flights


def expected() -> pd.DataFrame:
    """The expected flights, from the package's own table."""
    departure = flights()["departure"]
    departure = departure[departure.dt.strftime("%Y-%m").isin(MONTHS)]
    in_week = departure[departure.between(*WEEK, inclusive="left")]
    columns = {"archived": departure, "replayed": in_week}
    counts = {name: times.dt.strftime("%Y-%m-%d").value_counts() for name, times in columns.items()}
    return pd.DataFrame(counts).fillna(0).astype(int).sort_index()


@pytest.mark.full
def test_a_week_is_replayed_from_an_archive_of_two_months(
    spark: SparkSession, target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = archive_replay.main(Cluster(target.bootstrap), tmp_path)
    assert found.to_dict() == expected().to_dict()
    told = capsys.readouterr().out
    count = len(list(archive_replay.departures(MONTHS[1])))
    assert f"verified: 0 faults, {count:,} flights are in the topic too" in told
