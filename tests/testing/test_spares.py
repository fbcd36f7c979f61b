"""Processes that wait for a command serve as well as new ones, and end with the process that started them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kpybroker.testing.spares import SPARES_MAX, Spares

WAIT_S = 30


@pytest.fixture
def spares() -> Iterator[Spares]:
    made = Spares()
    yield made
    made.close()


@pytest.mark.slow
def test_the_number_of_spares_is_limited(spares: Spares) -> None:
    spares.keep(SPARES_MAX + 5)
    assert len(spares.pids) == SPARES_MAX
    spares.refill()
    assert len(spares.pids) == SPARES_MAX


@pytest.mark.slow
def test_a_spare_that_has_ended_is_not_used(spares: Spares, tmp_path: Path) -> None:
    spares.keep(1)
    [pid] = spares.pids
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    process = spares.start(["dev", "--port", "0", "--data-dir", str(tmp_path / "data"), "--commands"], tmp_path / "log")
    with process:
        assert process.pid != pid
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"kpybroker ready")
        process.kill()
    spares.refill()
    [new] = spares.pids
    assert new != pid


@pytest.mark.slow
@pytest.mark.parametrize("is_spare", [False, True])
def test_a_spare_has_todays_environment_and_directory(
    is_spare: bool, spares: Spares, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spares.keep(int(is_spare))
    monkeypatch.setenv("KPYBROKER_LOG", "DEBUG")
    monkeypatch.chdir(tmp_path)
    with spares.start(["dev", "--port", "0", "--data-dir", "here", "--commands"], tmp_path / "log") as process:
        assert process.stdout is not None
        assert f"data={tmp_path}/here" in process.stdout.readline().decode()
        process.kill()
    assert (tmp_path / "here").is_dir()
    assert " INFO kpybroker.raft.quorum: " in (tmp_path / "log").read_text()


SCRIPT = """
import time
from kpybroker.testing import Broker
from kpybroker.testing.spares import SPARES
SPARES.keep(2)
with Broker() as broker:
    print(broker.pid, *SPARES.pids, flush=True)
    time.sleep(60)
"""


FORKING = SCRIPT.replace("import time", "import os, time").replace(
    "    time.sleep(60)",
    """    import threading
    fault, recording = broker.fault("Produce", disconnect=True).__enter__(), broker.record()
    held = threading.Event()
    threading.Thread(target=lambda: (broker._telling.__enter__(), held.set(), time.sleep(60)), daemon=True).start()
    held.wait()
    if os.fork() == 0:
        for use in (lambda: broker.clock.advance("1s"), lambda: broker.running_nodes):
            try:
                use()
            except RuntimeError as refused:
                assert "belongs to process" in str(refused)
        fault.heal()
        recording.end()
        assert (fault.hits, len(recording)) == (0, 0)
        broker.send("orders", "paid")
        with Broker() as own:
            own.send("orders", "paid")
        try:
            broker.fault("Produce", disconnect=True).__enter__()
        except RuntimeError as refused:
            print(refused, flush=True)
        broker.close()
        print(os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)""",
)
"""The child uses the broker of its parent and one of its own, and outlives the parent. At the fork, another thread
holds the lock of the cluster."""


@pytest.mark.slow
@pytest.mark.parametrize("forks", [False, True])
def test_nothing_survives_a_killed_test_process(forks: bool, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", FORKING if forks else SCRIPT], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        handles = [os.pidfd_open(int(pid)) for pid in process.stdout.readline().split()]
        assert len(handles) == 3
        child = None
        if forks:
            assert f"this Broker belongs to process {process.pid}" in process.stdout.readline()
            child = int(process.stdout.readline())
        assert len(list(tmp_path.iterdir())) == 1
        process.kill()
    for handle in handles:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        assert poll.poll(WAIT_S * 1000), "a process survives"
        os.close(handle)
    deadline = time.monotonic() + WAIT_S
    while list(tmp_path.iterdir()):
        assert time.monotonic() < deadline, "the directory is not removed"
        time.sleep(0.01)
    if child is not None:
        os.kill(child, signal.SIGKILL)
