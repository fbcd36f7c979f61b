"""The fixtures: a broker for the session that costs nothing if it is not used, and stops however the session ends."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kpybroker.testing.process import BrokerProcess, BrokerStartError

WAIT_S = 60


def test_topic_names_are_unique(kpybroker: BrokerProcess) -> None:
    names = [kpybroker.topic("orders") for _ in range(100)]
    assert len(set(names)) == 100
    assert all(name.startswith("orders-") for name in names)
    assert all(len(kpybroker.topic("x" * size)) <= 249 for size in (0, 200))
    with pytest.raises(ValueError, match="201"):
        kpybroker.topic("x" * 201)


def test_a_topic_name_is_valid(kpybroker: BrokerProcess) -> None:
    """The name of a parametrized test is a natural prefix."""
    assert re.fullmatch(r"test_orders-new-2x-[a-z0-9-]+", kpybroker.topic("test_orders[new 2x]"))
    for prefix in ("", ".", "..", "a/b", "zażółć", "a\nb", "\0"):
        assert re.fullmatch(r"[a-zA-Z0-9._-]{3,249}", kpybroker.topic(prefix))


def test_a_session_without_brokers_imports_nothing_else() -> None:
    code = "import sys, kpybroker.testing.plugin as p; print([m for m in sys.modules if m.startswith('kpybroker')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.split("\n")[0] == "['kpybroker', 'kpybroker.testing', 'kpybroker.testing.plugin']"


@pytest.mark.parametrize("brokers", [1, 2])
@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("num.partitons=1", "unknown setting num.partitons; did you mean num.partitions?"),
        ("num.partitions=x", "Invalid value x for configuration num.partitions: Not a number of type INT"),
    ],
)
def test_a_broker_that_cannot_start_reports_why(setting: str, told: str, brokers: int) -> None:
    """In terms of the Python call, not of the command line."""
    with pytest.raises(BrokerStartError) as raised, BrokerProcess.started(setting, brokers=brokers):
        pass
    assert str(raised.value) == f"kpybroker ended with code 2: {told}"


@pytest.mark.parametrize(
    ("setting", "kind", "told"),
    [
        ({"num.partitions": 3}, TypeError, r"a setting must be a string, as in .*\('num\.partitions=3'\), not dict"),
        ("num.partitions", ValueError, "write 'name=value'"),
        ("=3", ValueError, "write 'name=value'"),
        ("log.dirs=/data", ValueError, "the broker has a temporary directory"),
    ],
)
def test_invalid_settings_are_refused_before_a_start(setting: Any, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told), BrokerProcess.started(setting):
        pass


@pytest.mark.parametrize("brokers", [0, 51])
def test_too_many_brokers_are_refused(brokers: int) -> None:
    with pytest.raises(ValueError, match="must be from 1 to 50"), BrokerProcess.started(brokers=brokers):
        pass


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_killed_broker_leaves_no_directory(brokers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with BrokerProcess.started(brokers=brokers) as broker:
        assert len(list(tmp_path.glob("kpybroker-*"))) == 1
        assert broker.ended() is None
        os.kill(broker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, broker.pid, os.WEXITED | os.WNOWAIT)
        assert broker.ended() == "ended with code -9 (SIGKILL)"
    assert not list(tmp_path.glob("kpybroker-*"))


def session(tmp_path: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """pytest in a process of its own, on one file."""
    (tmp_path / "test_inner.py").write_text(code)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=WAIT_S,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )


SENDS = """
import os, signal, socket

def send(broker, data):
    host, _, port = broker.bootstrap.split(",")[0].rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(data)
        connection.recv(1)  # the broker has refused it, said so, and closed
"""


@pytest.mark.parametrize(
    ("fixture", "options"),
    [
        ("kpybroker", ()),
        pytest.param("kpybroker", ("-n1",), marks=pytest.mark.slow),
        pytest.param("kpybroker_cluster", (), marks=pytest.mark.slow),
    ],
)
def test_a_failed_test_shows_the_brokers_output_since_its_start(
    fixture: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    ended = session(
        tmp_path,
        f"{SENDS}\n"
        f"def test_one({fixture}): send({fixture}, b'GET / HTTP/1.1')\n"
        f"def test_two({fixture}): send({fixture}, bytes([22, 3, 1, 0, 200, 1, 0, 0, 0])); assert False\n"
        "def test_three(): assert False\n",
        *options,
    )
    assert ended.returncode == 1, ended.stdout
    assert ended.stdout.count("- kpybroker -") == 1, "it said nothing in the third test"
    assert ended.stdout.count("ClientHello") == 1, ended.stdout
    assert "HTTP" not in ended.stdout.split("- kpybroker -")[1]


def test_a_failed_test_shows_that_the_broker_has_ended(tmp_path: Path) -> None:
    ended = session(
        tmp_path,
        f"{SENDS}\n"
        "def test_killed(kpybroker):\n"
        "    os.kill(kpybroker.pid, signal.SIGKILL)\n"
        "    os.waitid(os.P_PID, kpybroker.pid, os.WEXITED | os.WNOWAIT)\n"
        "def test_after(kpybroker): send(kpybroker, b'')\n",
    )
    assert ended.returncode == 1, ended.stdout
    assert re.search(r"the broker at 127\.0\.0\.1:\d+ ended with code -9 \(SIGKILL\)", ended.stdout), ended.stdout
    assert not list(tmp_path.glob("kpybroker-*"))


def test_the_broker_stops_with_a_killed_session(tmp_path: Path) -> None:
    """kill -9 on pytest itself, in the middle of a test."""
    ended = session(
        tmp_path,
        "import os, signal\n"
        "def test_killed(kpybroker):\n"
        "    print('PID', kpybroker.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n",
        "-s",
    )
    assert ended.returncode == -signal.SIGKILL
    pid = int(ended.stdout.split("PID ")[1].split()[0])
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        watch = select.poll()  # select accepts no descriptor above 1023
        watch.register(handle, select.POLLIN)
        assert watch.poll(WAIT_S * 1000), "the broker outlives its session"
        os.close(handle)
    assert not list(tmp_path.glob("kpybroker-*")), "its directory is removed"
