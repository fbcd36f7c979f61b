"""The fixture: a broker for the session, free for those who do not use it, gone however the session ends."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kpybroker.testing.process import BrokerProcess, BrokerStartError

WAIT_S = 60


def test_names_are_new_each_time(kpybroker: BrokerProcess) -> None:
    names = [kpybroker.topic("orders") for _ in range(100)]
    assert len(set(names)) == 100
    assert all(name.startswith("orders-") for name in names)
    assert all(len(kpybroker.topic("x" * size)) <= 249 for size in (0, 200))
    with pytest.raises(ValueError, match="201"):
        kpybroker.topic("x" * 201)


def test_a_session_that_does_not_use_it_does_not_pay() -> None:
    code = "import sys, kpybroker.testing.plugin as p; print([m for m in sys.modules if m.startswith('kpybroker')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.split("\n")[0] == "['kpybroker', 'kpybroker.testing', 'kpybroker.testing.plugin']"


def test_a_broker_that_cannot_start_says_why() -> None:
    with (
        pytest.raises(BrokerStartError, match=r"did you mean num\.partitions"),
        BrokerProcess.started("num.partitons=1"),
    ):
        pass


def test_the_broker_dies_with_a_killed_session(tmp_path: Path) -> None:
    """kill -9 on pytest itself, in the middle of a test."""
    (tmp_path / "test_killed.py").write_text(
        "import os, signal\n"
        "def test_killed(kpybroker):\n"
        "    print('PID', kpybroker.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    session = subprocess.run(
        [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=WAIT_S,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert session.returncode == -signal.SIGKILL
    pid = int(session.stdout.split("PID ")[1].split()[0])
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        watch = select.poll()  # select takes no handle above 1023
        watch.register(handle, select.POLLIN)
        assert watch.poll(WAIT_S * 1000), "the broker outlives its session"
        os.close(handle)
    assert not list(tmp_path.glob("kpybroker-*")), "its directory is removed"
