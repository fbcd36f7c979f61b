"""Tests of `dev --detach`, `wait` and `stop`, with which the steps of a CI job can use a broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kpybroker.testing import Broker
from tests.cli.shell import Shell

pytestmark = pytest.mark.slow

WAIT_S = 60


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kpybroker", *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False
    )


@pytest.mark.parametrize("brokers", ["1", pytest.param("3", marks=pytest.mark.slow)])
def test_a_broker_runs_on_until_it_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brokers: str) -> None:
    where = ("--data-dir", str(tmp_path / "data"))
    begun = program("dev", "--detach", "--port", "0", "--brokers", brokers, *where)
    assert begun.returncode == 0, begun.stderr
    facts = dict(word.split("=", 1) for word in begun.stdout.split()[2:])
    assert begun.stdout.startswith("kpybroker ready bootstrap=")
    try:
        assert json.loads((tmp_path / "data.ready").read_text())["pid"] == int(facts["pid"])
        shell = Shell(facts["bootstrap"], monkeypatch)
        assert shell("wait", "--brokers", brokers, "--in-sync", "--json").json["brokers"] == list(
            range(1, int(brokers) + 1)
        )
        shell("produce", "orders", stdin=b"one\n")
        os.kill(int(facts["pid"]), signal.SIGHUP)  # SIGHUP does not stop the broker, because its terminal may be closed
        again = program("dev", "--detach", "--port", "0", "--brokers", brokers, *where)
        assert (again.returncode, "in use" in again.stderr) == (2, True)
        assert f"`kpybroker stop --data-dir {tmp_path / 'data'}` stops it" in again.stderr
        assert shell("consume", "orders", "--from-beginning").out == "one\n", "the first one still serves"
    finally:
        ended = program("stop", *where)
    assert (ended.returncode, ended.stdout) == (0, f"stopped the broker on {tmp_path / 'data'}\n"), ended.stderr
    assert "no server listens" in shell("topics", "list").err
    assert not (tmp_path / "data.ready").exists()
    assert "no broker runs on" in program("stop", *where).stderr


def test_a_broker_started_without_detach_is_not_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kpybroker", "dev", "--port", "0", "--data-dir", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("kpybroker ready")
        refused = program("stop", "--data-dir", str(tmp_path))
        assert (refused.returncode, "Ctrl-C" in refused.stderr) == (1, True)
        assert process.poll() is None
    finally:
        process.terminate()
        process.communicate(timeout=WAIT_S)


def test_waiting_ends_with_the_reason(kpybroker: Broker, shell: Shell) -> None:
    assert shell("wait").out == "1 broker up\n"
    answer = shell("wait", "--brokers", "2", "--timeout", "0.3")
    assert (answer.code, answer.err) == (1, "kpybroker: not ready after 0.3 s: 1 of 2 brokers are up\n")
    nobody = shell("wait", "--bootstrap", "127.0.0.1:1", "--timeout", "0.3")
    assert (nobody.code, "no server listens at 127.0.0.1:1" in nobody.err) == (1, True)


def test_a_broker_that_cannot_start_reports_why(tmp_path: Path, kpybroker_port: str) -> None:
    failed = program("dev", "--detach", "--port", kpybroker_port, "--data-dir", str(tmp_path / "data"))
    assert (failed.returncode, failed.stderr.count("\n")) == (2, 1)
    assert f"cannot listen on 127.0.0.1:{kpybroker_port}" in failed.stderr, "the last line of its log"


@pytest.fixture
def kpybroker_port(kpybroker: Broker) -> str:
    """A port in use."""
    return kpybroker.bootstrap.rpartition(":")[2]


@pytest.mark.parametrize("other", [("--ephemeral",), ("--ready-file", "x"), ("--until-stdin-closes",)], ids=str)
def test_options_that_exclude_detach(other: tuple[str, ...]) -> None:
    refused = program("dev", "--detach", *other)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert f"--detach and {other[0]} cannot be used together" in refused.stderr
