"""Tests that each flight is joined with the plane according to all changes sent before it, whether the topic was
cleaned or not."""

import json
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kpybroker.spark import Cluster
from oracle.target import Target
from spark_examples import enrich_join
from spark_examples.enrich_join import days

pytestmark = pytest.mark.full

Flight = tuple[int, str, str | None, str | None, int | None]


def expected() -> list[Flight]:
    """The expected planes, change by change and flight by flight, in the order in which they were sent."""
    registry: dict[object, dict[str, object]] = {}
    found = []
    for day in days():
        for change in day.changes:
            if change.value is None:
                registry.pop(change.key, None)
            else:
                registry[change.key] = json.loads(change.value)
        for flight in map(json.loads, day.flights):
            plane = registry.get(flight["tailnum"], {})
            found.append((*(flight[name] for name in ("number", "carrier", "tailnum")), *plane_of(plane)))
    return found


def plane_of(row: dict[str, object]) -> tuple[object, ...]:
    return row.get("manufacturer"), row.get("seats")


@pytest.mark.parametrize("cleaned", [True, False], ids=["cleaned", "not cleaned"])
def test_each_flight_has_its_plane_of_that_day(
    spark: SparkSession, target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str], cleaned: bool
) -> None:
    found = enrich_join.main(Cluster(target.bootstrap), tmp_path, cleaned=cleaned)
    columns = found[["number", "carrier", "tailnum", "manufacturer", "seats"]].astype(object)
    rows = columns.where(columns.notna(), None)
    assert list(rows.itertuples(index=False, name=None)) == expected()
    told = re.search(r"(\d+) of (\d+) changes are left", capsys.readouterr().out)
    assert told is not None
    left, sent = map(int, told.groups())
    assert sent == sum(len(day.changes) for day in days())
    assert (left < sent) == cleaned


def test_the_order_of_changes_matters() -> None:
    """Otherwise the test could not distinguish a join with the first or the last registry from a join with the right
    one."""
    planes: dict[str | None, set[object]] = {}
    for _, _, tailnum, manufacturer, seats in expected():
        planes.setdefault(tailnum, set()).add((manufacturer, seats))
    assert sum(len(met) > 1 for met in planes.values()) > 100
    assert sum((None, None) in met and len(met) > 1 for met in planes.values()) > 10
