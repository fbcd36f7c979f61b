"""Tests that a stream that is killed twice adds up each committed transfer once, and no aborted transfer."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kpybroker.spark import Cluster
from oracle.target import Target
from spark_examples import exactly_once_totals
from spark_examples.exactly_once_totals import KILL_IN_BATCH, transactions


@pytest.mark.timeout(600)  # three JVMs, one after the other
def test_sums_are_exact_after_two_kills(
    spark: SparkSession, target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = exactly_once_totals.main(Cluster(target.bootstrap), tmp_path)
    count, cents = Counter[int](), Counter[int]()
    for transfers, is_committed in transactions():
        for account, amount in transfers if is_committed else []:
            count[account] += 1
            cents[account] += amount
    assert list(found.itertuples(index=False, name=None)) == [(at, count[at], cents[at]) for at in sorted(count)]
    assert capsys.readouterr().out.count("killed in") == len(KILL_IN_BATCH)
    assert len(list((tmp_path / "sums").glob("batch=*"))) > KILL_IN_BATCH[-1] + 1, "it was over before the last kill"
