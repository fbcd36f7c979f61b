"""Tests that each payment above the limit has an alert, which is written while its batch is still running, and that
other payments have none."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kpybroker.errors import ConfigError
from kpybroker.spark import Cluster
from kpybroker.spark.prerequisites import spark_version
from oracle.target import Target
from spark_examples import realtime_alerts
from spark_examples.realtime_alerts import LIMIT_CENTS, OLDEST_SPARK, payments

pytestmark = pytest.mark.full

if spark_version() < OLDEST_SPARK:

    def test_an_older_spark_is_refused(target: Target, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"needs PySpark 4\.1 or later, this is 4\.0\.0") as refused:
            realtime_alerts.main(Cluster(target.bootstrap), tmp_path)
        assert "\n" not in str(refused.value)
        assert list(tmp_path.iterdir()) == []

else:

    def test_alerts_do_not_wait_for_the_end_of_a_batch(
        spark: SparkSession, target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        found = realtime_alerts.main(Cluster(target.bootstrap), tmp_path)
        assert sorted(found["id"]) == sorted(payment.id for payment in payments() if payment.cents > LIMIT_CENTS)
        told = capsys.readouterr().out
        assert "p99" in told
        assert (found["ms"] > 0).all()
        commits = [file.name for file in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")]
        assert commits == [], "a batch was over: its alerts may have waited for that"
