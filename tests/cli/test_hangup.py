"""Tests that `dev` stops cleanly when its terminal is closed, unless SIGHUP is ignored."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell, kpybroker_process, ready

pytestmark = pytest.mark.slow

WAIT_S = 60
DEV = ("dev", "--port", "0", "--ephemeral")
WITH_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


@pytest.fixture(autouse=True)
def _not_ignored() -> Iterator[None]:
    """Reset the handling of SIGHUP: child processes inherit ignored signals, and these tests may themselves run under
    nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of the program; its temporary directories are created in `tmp_path`."""
    return {**os.environ, "TMPDIR": str(tmp_path)}


def directories(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("kpybroker-*"))


@pytest.mark.parametrize("brokers", ["1", "3"])
def test_it_stops_and_leaves_nothing_behind(brokers: str, tmp_path: Path, environment: dict[str, str]) -> None:
    """Kernel and shell both send SIGHUP: the second one must not force an exit."""
    process = kpybroker_process(*DEV, "--brokers", brokers, env=environment)
    ready(process)
    assert len(directories(tmp_path)) == 1
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    out, log = process.communicate(timeout=WAIT_S)
    assert (out, process.returncode) == ("", 0)
    assert all(" INFO kpybroker.cluster: " in line for line in log.splitlines()), "events of a cluster only"
    assert not directories(tmp_path)


def test_it_stops_when_a_real_terminal_is_gone(tmp_path: Path, environment: dict[str, str]) -> None:
    """The program can no longer write to the terminal either."""
    ready_file = tmp_path / "ready"
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", WITH_TERMINAL, "-m", "kpybroker", *DEV, "--ready-file", str(ready_file)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=environment,
    )
    os.close(theirs)
    with open(ours, "rb", buffering=0) as terminal:
        assert terminal.readline().startswith(b"kpybroker ready ")
        assert json.loads(ready_file.read_text())["pid"] == process.pid
    assert process.wait(WAIT_S) == 0
    assert not directories(tmp_path)
    assert not ready_file.exists()


@pytest.fixture
def under_nohup(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A broker that was started with SIGHUP ignored."""
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" HUP; exec "$0" -m kpybroker "$@"', sys.executable, *DEV],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    yield process
    process.terminate()
    process.communicate(timeout=WAIT_S)


def test_under_nohup_it_keeps_running(under_nohup: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch) -> None:
    facts = ready(under_nohup)
    status = dict(line.split(":", 1) for line in Path(f"/proc/{under_nohup.pid}/status").read_text().splitlines())
    assert int(status["SigIgn"], 16) >> (signal.SIGHUP - 1) & 1, "the kernel drops it"
    under_nohup.send_signal(signal.SIGHUP)
    assert Shell(facts["bootstrap"], monkeypatch)("topics", "list").code == 0


def test_a_hangup_during_the_start_leaves_nothing_behind(tmp_path: Path, environment: dict[str, str]) -> None:
    """Two signals arrive after the directory was created and before the event loop handles signals."""
    code = (
        "from kpybroker.cli import early\n"
        "early.prepare(until_hangup=True)\n"
        "import os, signal, shutil\n"
        "from kpybroker.cli import serving\n"
        "from kpybroker.cli.arguments import run_serving\n"
        "remove = shutil.rmtree\n"
        "def hang_up(*_):\n"
        "    os.kill(os.getpid(), signal.SIGHUP)\n"
        "def and_remove(*args, **more):\n"
        "    hang_up()\n"
        "    remove(*args, **more)\n"
        "serving.check_alone, shutil.rmtree = hang_up, and_remove\n"
        f"run_serving({list(DEV)!r})\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False, env=environment
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert not directories(tmp_path)
