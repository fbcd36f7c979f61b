"""Tests of `status`, `cluster` and `brokers`: the output is correct, even if a part of the cluster does not respond."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from kpybroker.cli.show import show_size
from kpybroker.testing import Broker, Cluster
from tests.certificates import sign
from tests.cli.shell import Shell, kpybroker_process, ready
from tests.server.clustering import free_ports

pytestmark = pytest.mark.slow

WAIT_S = 60
LOOKS_MAX = 40


def test_the_screen_of_one_broker(shell: Shell, topic: str, group: str) -> None:
    shell("produce", topic, stdin=b"a\nb\nc\n")
    assert shell("groups", "reset", group, "--topic", topic, "--to-offset", "1", "--execute").code == 0
    told = shell("status", "--json").json
    assert told["unknown"] == {}
    assert told["controller"]["voters"] == [{"node": told["controller"]["node"], "behind": 0}]
    assert told["features"]["metadata.version"] > 0
    assert told["partitions"]["under_replicated"] == told["partitions"]["offline"] == []
    (node,) = told["nodes"]
    assert f"{node['host']}:{node['port']}" == shell.bootstrap
    assert node["leads"] == node["replicas"] == node["in_sync"] == told["partitions"]["partitions"]
    assert (node["kind"], node["release"], node["roles"]) == ("kpybroker", "4.3", ["broker", "controller"])
    assert told["other_controllers"] == []
    (disk,) = node["disks"]
    assert disk["used_bytes"] > 0
    assert disk["total_bytes"] >= disk["free_bytes"] > 0
    (mine,) = (each for each in told["groups"] if each["group"] == group)
    assert (mine["members"], mine["lag"]) == (0, 2)
    shown = shell("status").out
    for part in (
        *(told["cluster"], "all replicas in sync", shell.bootstrap, "metadata.version="),
        *("kpybroker (as 4.3)", "broker, controller"),
    ):
        assert part in shown
    assert shell("cluster", "--json").json == {
        name: told[name] for name in ("cluster", "controller", "features", "partitions", "unknown")
    }
    assert shell("cluster", "status").out == shell("status").out
    assert [each["node_id"] for each in shell("brokers", "list", "--json").json] == [node["node_id"]]
    assert shell.bootstrap in shell("brokers", "list").out


def test_the_http_address_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    process = kpybroker_process(*("dev", "--port", "0", "--data-dir", str(tmp_path), "--http-port", "0"))
    try:
        facts = ready(process)
        (node,) = Shell(facts["bootstrap"], monkeypatch)("brokers", "list", "--json").json
        assert node["http"] in (None, facts["http"]), "a port that the system picked is in no setting"
    finally:
        process.terminate()
        process.wait(WAIT_S)


def test_an_http_address_with_tls_is_shown_as_such(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    authority = sign("authority")
    given = {
        "kpybroker.http.tls.listener": "PAGES",
        "listener.name.pages.ssl.keystore.type": "PEM",
        "listener.name.pages.ssl.keystore.location": str(sign("server", authority).pem(tmp_path / "server.pem")),
    }
    settings = [part for name, text in given.items() for part in ("--set", f"{name}={text}")]
    (port,) = map(str, free_ports(1))
    data = str(tmp_path / "data")
    process = kpybroker_process("dev", "--port", "0", "--data-dir", data, "--http-port", port, *settings)
    try:
        facts = ready(process)
        (node,) = Shell(facts["bootstrap"], monkeypatch)("brokers", "list", "--json").json
        assert node["http"] == f"https://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(WAIT_S)


def test_groups_are_listed_with_members_and_lag(shell: Shell, topic: str, group: str) -> None:
    shell("produce", topic, stdin=b"a\nb\nc\n")
    shell("groups", "reset", group, "--topic", topic, "--to-earliest", "--execute")
    (row,) = (each for each in shell("groups", "list", "--json").json if each["group"] == group)
    assert row == {"group": group, "state": "Empty", "type": "classic", "protocol": "", "members": 0, "lag": 3}
    (line,) = (line.split() for line in shell("groups", "list").out.splitlines() if line.startswith(group))
    assert line[-2:] == ["0", "3"]


def test_groups_are_watched_until_the_reader_has_seen_enough(kpybroker: Broker, shell: Shell) -> None:
    process = kpybroker_process("groups", "list", "--watch", "--json", "--bootstrap", kpybroker.bootstrap)
    assert process.stdout is not None
    assert [isinstance(json.loads(process.stdout.readline()), list) for _ in range(2)] == [True, True]
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=WAIT_S)[1] == ""
    assert process.returncode == 0


def test_a_broker_with_replicas_cannot_be_unregistered(shell: Shell, topic: str) -> None:
    shell("topics", "create", topic)
    (node,) = shell("brokers", "list", "--json").json
    refused = shell("brokers", "unregister", str(node["node_id"]))
    assert (refused.code, "kpybroker reassign start" in refused.err) == (1, True)
    assert "no broker 99" in shell("brokers", "unregister", "99").err


@pytest.mark.slow
def test_lost_nodes_are_named_and_the_rest_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three brokers is killed, then the quorum is lost: the output shows both, with exit code 0."""
    with Cluster(3) as cluster:
        shell = Shell(cluster.bootstrap, monkeypatch)
        shell("produce", "orders", stdin=b"a\n")
        cluster.kill(3)
        for _ in range(LOOKS_MAX):
            told = shell("status", "--json").json
            if [node["is_fenced"] for node in told["nodes"]] == [False, False, True] and not told["unknown"]:
                break
        assert "orders-0" in told["partitions"]["under_replicated"]
        assert [node["is_fenced"] for node in told["nodes"]] == [False, False, True]
        assert [node["kind"] for node in told["nodes"]] == ["kpybroker", "kpybroker", None]
        assert told["nodes"][2]["in_sync"] < told["nodes"][2]["replicas"]
        assert told["nodes"][2]["roles"] == ["broker", "controller"], "it is a voter"
        assert "under-replicated" in shell("status").out
        cluster.kill(told["controller"]["node"])
        lost = shell("status", "--json", "--timeout", "1")
        assert lost.code == 0
        assert "controller" in lost.json["unknown"]
        assert set(lost.json["unknown"]) <= {"controller", "groups"}, "one missing answer delays no other"
        assert lost.json["nodes"]
        last = next(each for each in told["nodes"] if each["node_id"] in {1, 2} - {told["controller"]["node"]})
        there = Shell(f"{last['host']}:{last['port']}", monkeypatch)
        listed = there("topics", "list", "--json", "--timeout", "1")
        assert (listed.code, [topic["topic"] for topic in listed.json]) == (0, ["orders"])


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (-1, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_400, "99.4 kB"),
        (999_999, "1.0 MB"),
        (5 * 10**12, "5.0 TB"),
    ],
)
def test_sizes_are_readable(size: int, shown: str) -> None:
    assert show_size(size) == shown
