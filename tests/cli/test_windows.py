"""Tests the program where everything that Windows lacks is missing (`windows/sitecustomize.py`)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_platforms import WAIT_S, use

SIMULATED = Path(__file__).parent / "windows"
ROOT = Path(__file__).parents[2]
KIT = """
import os
from kpybroker.testing import Broker

with Broker() as broker:
    topic = broker.topic("t", create=True)
    broker.send(topic, b"1")
    broker.pause()
    broker.resume()
    directory = str(broker._directory)
    broker.stop()
    assert os.path.exists(directory + "/data/.kafka_cleanshutdown"), "it was not killed"
    broker.start()
    snapshot = broker.snapshot()
    broker.send(topic, b"2")
    broker.kill()
    broker.start()
    assert [record.value for record in broker.records(topic)] == [b"1", b"2"]
    broker.restore(snapshot)
    assert [record.value for record in broker.records(topic)] == [b"1"]
    assert "Traceback" not in broker.log, broker.log
assert not os.path.exists(directory)
print("done")
"""


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    folder = tmp_path / "temporary"
    folder.mkdir()
    yield {**os.environ, "PYTHONPATH": f"{SIMULATED}{os.pathsep}{ROOT}", "TMPDIR": str(folder)}
    left = [path.name for path in folder.iterdir() if not path.is_fifo()]
    assert left == []


def program(environment: dict[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "kpybroker", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)


def ready(process: subprocess.Popen[bytes], data: Path | None = None) -> list[str]:
    """The addresses in the ready line, which must name the directory."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith(b"kpybroker ready bootstrap="), process.communicate(timeout=WAIT_S)[1].decode()
    assert line.endswith(b"\r\n")
    assert data is None or f" data={data} ".encode() in line
    return line.split()[2].partition(b"=")[2].decode().split(",")


@pytest.mark.parametrize("how", ["stdin", "ctrl-c", "ctrl-break"])
def test_a_broker_serves_and_stops(how: str, environment: dict[str, str]) -> None:
    process = program(environment, "dev", "--port", "0", "--ephemeral", "--until-stdin-closes")
    try:
        (address,) = ready(process)
        asyncio.run(use(address))
        assert process.stdin is not None
        if how != "stdin":
            process.send_signal(signal.SIGINT if how == "ctrl-c" else signal.SIGQUIT)
        said = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
    assert (*said, process.returncode) == (b"", b"", 0)


def test_directories_may_have_the_separators_of_windows(tmp_path: Path, environment: dict[str, str]) -> None:
    native = str(tmp_path / "data").replace("/", "\\")
    process = program(environment, "serve", "--set", f"log.dirs={native}", "--set", "listeners=PLAINTEXT://127.0.0.1:0")
    try:
        ready(process, tmp_path / "data")
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S)
    assert (tmp_path / "data" / "meta.properties").exists()


def test_too_many_connections_are_refused(environment: dict[str, str]) -> None:
    process = program(environment, "dev", "--port", "0", "--ephemeral", "--set", "max.connections=5000")
    said, errors = process.communicate(timeout=WAIT_S)
    assert (said, process.returncode) == (b"", 2)
    assert b"on Windows, at most 384 connections are possible" in errors


@pytest.mark.slow
def test_several_brokers_serve_and_stop(environment: dict[str, str]) -> None:
    process = program(environment, "dev", "--brokers", "2", "--port", "0", "--ephemeral")
    try:
        assert len(ready(process)) == 2
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
    assert (*said, process.returncode) == (b"", b"", 0)


@pytest.mark.slow
def test_a_broker_in_the_background_is_asked_to_stop(tmp_path: Path, environment: dict[str, str]) -> None:
    """There is no SIGTERM: `os.kill` would kill it."""
    data = ("--data-dir", str(tmp_path / "data"))
    started = program(environment, "dev", "--port", "0", "--detach", *data)
    ready(started)
    assert started.wait(WAIT_S) == 0
    again = program(environment, "dev", "--port", "0", "--detach", *data)
    assert b"is in use by another kpybroker" in again.communicate(timeout=WAIT_S)[1]
    stopped = program(environment, "stop", *data)
    said, errors = stopped.communicate(timeout=WAIT_S)
    assert (stopped.returncode, errors) == (0, b"")
    assert said.startswith(b"stopped the broker on ")
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists(), "it was not killed"
    assert not (tmp_path / "data.ready").exists()


@pytest.mark.slow
def test_the_test_kit_starts_pauses_and_stops_brokers(environment: dict[str, str]) -> None:
    command = [sys.executable, "-P", "-c", KIT]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (ended.stdout.split(), ended.returncode) == (["done"], 0), ended.stderr
