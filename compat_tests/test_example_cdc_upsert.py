"""Tests that the table equals a dictionary built from the same changes, and that a replay of all changes leaves every
row unchanged."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kpybroker.spark import Cluster
from oracle.target import Target
from spark_examples import cdc_upsert
from spark_examples.cdc_upsert import CHANGES, changes

pytestmark = pytest.mark.full


def expected() -> list[dict[str, object]]:
    """Apply the changes in the order of the database, which differs from the order of the topic: some changes are
    repeated."""
    table: dict[int, dict[str, object]] = {}
    told = {change["position"]: change for change in (json.loads(record.value or "") for record in changes())}
    assert len(told) < CHANGES, "none came twice"
    for position in sorted(told):
        change = told[position]
        if change["op"] == "d":
            del table[change["id"]]
        else:
            table[change["id"]] = change["after"]
    return [table[customer] for customer in sorted(table)]


def test_the_table_is_the_result_of_its_changes_once_and_again(
    spark: SparkSession, target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = cdc_upsert.main(Cluster(target.bootstrap), tmp_path)
    assert found.to_dict("records") == expected()
    assert "the replay changed nothing" in capsys.readouterr().out
    assert cdc_upsert.current(tmp_path / "customers") > 12, "the replay ran no batches"
