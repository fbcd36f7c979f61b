"""Tests the output of `make demo` against kpybroker and Apache Kafka. The demo sends the flights of 2013 through Kafka
to Spark, and back."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oracle.target import Target

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.timeout(900)  # three JVMs, one after the other: a minute on an idle machine
def test_every_flight_goes_through_and_every_total_agrees(target: Target, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "spark_examples.flights_demo", "--bootstrap", target.bootstrap]
    here = {**os.environ, "TMPDIR": str(tmp_path)}
    run = subprocess.run(command, cwd=ROOT, env=here, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "336,776 flights went through" in run.stdout
    assert "✗" not in run.stdout
