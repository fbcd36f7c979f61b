"""Tests of the pytest fixtures: the broker of a session is started only if it is used, and stops regardless of how the
session ends."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kpybroker.testing import Broker

pytestmark = pytest.mark.slow

WAIT_S = 60


def test_topic_names_are_unique(kpybroker: Broker) -> None:
    names = [kpybroker.topic("orders") for _ in range(100)]
    assert len(set(names)) == 100
    assert all(name.startswith("orders-") for name in names)
    assert all(len(kpybroker.topic("x" * size)) <= 249 for size in (0, 200))
    with pytest.raises(ValueError, match="201"):
        kpybroker.topic("x" * 201)


def test_a_topic_name_is_valid(kpybroker: Broker) -> None:
    """Tests often use the name of a parametrized test as the prefix."""
    assert re.fullmatch(r"test_orders-new-2x-[a-z0-9-]+", kpybroker.topic("test_orders[new 2x]"))
    for prefix in ("", ".", "..", "a/b", "zażółć", "a\nb", "\0"):
        assert re.fullmatch(r"[a-zA-Z0-9._-]{3,249}", kpybroker.topic(prefix))


def test_a_session_without_brokers_imports_nothing_else() -> None:
    code = "import sys, kpybroker.testing.plugin as p; print([m for m in sys.modules if m.startswith('kpybroker')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    names = ["kpybroker.compiled_build", "kpybroker", "kpybroker.testing", "kpybroker.testing.plugin"]
    assert loaded.split("\n")[0] == repr(names)


def session(tmp_path: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a separate process, on one file."""
    (tmp_path / "test_inner.py").write_text(code)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, str(tmp_path)],
        capture_output=True,
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
    assert re.search(r"broker 1 ended with code -9 \(SIGKILL\) \(of 127\.0\.0\.1:\d+\)", ended.stdout), ended.stdout
    assert not list(tmp_path.glob("kpybroker-*"))


def test_a_paused_broker_is_named_to_the_tests_after_it(tmp_path: Path) -> None:
    ended = session(
        tmp_path,
        "def test_one(kpybroker): kpybroker.pause()\n"
        "def test_two(kpybroker): kpybroker.expect('orders', 1, 0)\n"
        "def test_three(kpybroker): kpybroker.resume()\n",
    )
    assert "1 failed, 2 passed" in ended.stdout
    assert re.search(r"broker 1 is paused; resume\(1\) lets it continue \(of 127\.0\.0\.1:\d+\)", ended.stdout)


def test_a_failed_test_shows_its_last_requests(tmp_path: Path) -> None:
    """Those of the failed test, and at most 30; none of the test kit itself."""
    ended = session(
        tmp_path,
        "from confluent_kafka.admin import AdminClient\n"
        "def look(broker, name, times):\n"
        "    admin = AdminClient({'bootstrap.servers': broker.bootstrap, 'client.id': name})\n"
        "    for _ in range(times): admin.list_topics(timeout=10)\n"
        "def test_one(kpybroker): look(kpybroker, 'first', 1)\n"
        "def test_two(kpybroker): look(kpybroker, 'second', 50); kpybroker.topic(create=True); assert False\n"
        "def test_three(kpybroker): assert False\n",
    )
    assert ended.stdout.count("- last requests to kpybroker at 127.0.0.1:") == 1, ended.stdout
    shown = re.findall(r"^\d\d:\d\d:\d\d\.\d{3}  1     (\S+) +(\S+) v\d+ .* ok$", ended.stdout, re.MULTILINE)
    assert shown == [("second", "Metadata")] * 30
    assert re.search(r"^\(\d+ earlier ones are left out\)$", ended.stdout, re.MULTILINE)


@pytest.mark.parametrize("before", ["", "    kpybroker.pause()\n"], ids=["running", "paused"])
def test_the_broker_stops_with_a_killed_session(before: str, tmp_path: Path) -> None:
    """pytest itself is killed with kill -9 in the middle of a test."""
    ended = session(
        tmp_path,
        "import os, signal\n"
        "def test_killed(kpybroker):\n"
        "    print('PID', kpybroker.pid, flush=True)\n"
        f"{before}"
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


def test_a_marker_and_an_ini_option_set_what_a_fresh_broker_is_like(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nkpybroker_settings =\n    num.partitions=2\n    message.max.bytes=9\n"
    )
    ended = session(
        tmp_path,
        "import pytest\n"
        "from kpybroker.testing import Broker\n"
        "@pytest.mark.kpybroker(settings={'num.partitions': 5})\n"
        "def test_marked(kpybroker_fresh):\n"
        "    for _ in range(5):\n"
        "        with pytest.raises(Exception, match='message.max.bytes|max.message.bytes'):\n"
        "            kpybroker_fresh.send('t', 'x' * 90)\n"
        "    assert len(kpybroker_fresh.nodes) == 1\n"
        "@pytest.mark.kpybroker(brokers=2, settings={'num.partitions': 4}, api_versions={'ShareFetch': None})\n"
        "class TestOf:\n"
        "    @pytest.mark.kpybroker(settings={'message.max.bytes': 1000})\n"
        "    def test_settings_of_both(self, kpybroker_fresh):\n"
        "        kpybroker_fresh.send('t', 'x' * 90)\n"
        "        with pytest.raises(ValueError, match='no partition 4: it has 4'):\n"
        "            kpybroker_fresh.send('t', 'x', partition=4)\n"
        "    def test_two(self, kpybroker_fresh):\n"
        "        assert len(kpybroker_fresh.bootstrap.split(',')) == 2\n",
    )
    assert ended.returncode == 0, ended.stdout
    assert not list(tmp_path.glob("kpybroker-*"))


@pytest.mark.parametrize(
    ("marker", "fixture", "told"),
    [
        ("broker=3", "kpybroker_fresh", "but not broker; did you mean brokers?"),
        ("settings=['num.partitions']", "kpybroker_fresh", "are a mapping, such as {'num.partitions': 3}, not list"),
        ("{'num.partitions': 3}", "kpybroker_fresh", "name the arguments of @pytest.mark.kpybroker"),
        ("brokers=3", "kpybroker", "@pytest.mark.kpybroker needs the fixture kpybroker_fresh"),
    ],
)
@pytest.mark.parametrize("options", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_a_marker_without_effect_fails_its_test(
    options: list[str], marker: str, fixture: str, told: str, tmp_path: Path
) -> None:
    """The other tests run."""
    code = f"import pytest\n@pytest.mark.kpybroker({marker})\ndef test_one({fixture}): pass\ndef test_two(): pass\n"
    ended = session(tmp_path, code, *options)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout
    assert told in ended.stdout
    assert "1 passed, 1 error" in ended.stdout


def test_a_marker_of_a_class_is_for_those_tests_that_have_a_fresh_broker(tmp_path: Path) -> None:
    ended = session(
        tmp_path,
        "import pytest\n"
        "@pytest.mark.kpybroker(settings={'num.partitions': 5})\n"
        "class TestOf:\n"
        "    def test_without(self): pass\n"
        "    def test_with(self, kpybroker_fresh): kpybroker_fresh.topic('t', create=True)\n"
        "@pytest.mark.kpybroker(settings={'num.partitions': 5})\n"
        "def test_later(request): request.getfixturevalue('kpybroker_fresh').topic('t', create=True)\n",
    )
    assert ended.returncode == 0, ended.stdout


def test_the_same_tests_run_on_another_cluster(tmp_path: Path, kpybroker: Broker) -> None:
    """The fixtures start no broker, and tests that need their own brokers are skipped with the reason."""
    topic = kpybroker.topic("orders")
    ended = session(
        tmp_path,
        f"def test_one(kpybroker): kpybroker.send({topic!r}, 'paid')\ndef test_two(kpybroker_fresh): pass\n",
        "--kpybroker-bootstrap",
        kpybroker.bootstrap,
        "-rs",
    )
    assert ended.returncode == 0, ended.stdout
    assert "1 passed, 1 skipped" in ended.stdout
    assert "kpybroker_fresh starts brokers of its own, which --kpybroker-bootstrap rules out" in ended.stdout
    assert [record.value for record in kpybroker.records(topic)] == [b"paid"]
