"""Tests of `dev --brokers`: the plan of several nodes, and their processes."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kpybroker.cli.arguments import run_serving
from kpybroker.cli.local_cluster import HOST, LocalClusterOptions, LocalNode, Ports, plan, replication, voters_among
from kpybroker.config import parse_properties
from kpybroker.errors import ConfigError
from oracle.target import steady_port
from tests.cli.running import WAIT_S, Start, last_line, lines_of, log_until, pid_of, stopped
from tests.cli.shell import Shell, ready

pytestmark = pytest.mark.slow


@pytest.fixture
def ports() -> Iterator[Ports]:
    with contextlib.closing(Ports()) as held:
        yield held


def wait_until_gone(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        poll = select.poll()  # select() takes no handle above 1023
        poll.register(handle, select.POLLIN)
        assert poll.poll(WAIT_S * 1000), f"{pid} does not end"
        os.close(handle)


def wait_until_in_sync(shell: Shell, topic: str, node_id: int) -> None:
    """Wait until the node is in sync, because only then does it have leaderships. The shell must use only this node,
    because other nodes may still return the earlier state.
    """
    deadline = time.monotonic() + WAIT_S
    while node_id not in shell("topics", "describe", topic, "--json").json[0]["partitions"][0]["isr"]:
        assert time.monotonic() < deadline, f"{node_id} is not in sync"


# ---- the plan


def planned(directory: Path, brokers: int, ports: Ports, port: int = 0, http: int | None = None) -> list[LocalNode]:
    return plan(directory, LocalClusterOptions(brokers, port, http, {}), {}, ports)


def quiet_port() -> int:
    """The first of some hundreds of unused ports, below the range from which the system picks ports."""
    for port in range(20_000, 32_000, 200):
        with contextlib.closing(Ports()) as ports, contextlib.suppress(ConfigError):
            for offset in range(150):
                ports.hold(port + offset)
            return port
    raise AssertionError("this machine has no ports left")


def test_the_number_of_voters() -> None:
    """It is odd, at most the number of nodes, and never more than five."""
    voters = [voters_among(count) for count in range(1, 12)]
    assert voters == [1, 1, 3, 3, 5, 5, 5, 5, 5, 5, 5]


@pytest.mark.parametrize(
    ("brokers", "replicas", "in_sync"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (9, "3", "2")]
)
def test_the_replication_settings(brokers: int, replicas: str, in_sync: str) -> None:
    for name, value in replication(brokers).items():
        assert value == (in_sync if "insync" in name or "min.isr" in name else replicas), name


@pytest.mark.parametrize("brokers", [2, 3, 4, 7])
def test_a_plan_is_one_cluster(brokers: int, tmp_path: Path, ports: Ports) -> None:
    """Every node listens on separate ports and names the same voters, and the voters listen at the named addresses."""
    configs = [node.config for node in planned(tmp_path, brokers, ports, http=0)]
    endpoints = [endpoint for config in configs for endpoint in (*config.listeners, *config.controller_listeners)]
    taken = [endpoint.port for endpoint in endpoints] + [config.http_port for config in configs]
    assert len(set(taken)) == len(taken)
    assert 0 not in taken
    assert len({config.controller_quorum_voters for config in configs}) == 1
    assert len({config.cluster_id for config in configs}) == 1
    assert len({config.log_dirs for config in configs}) == brokers
    for voter in configs[0].controller_quorum_voters:
        (controller,) = configs[voter.node_id - 1].controller_listeners
        assert (controller.host, controller.port) == (voter.host, voter.port)
    voters = voters_among(brokers)
    assert [bool(config.controller_listeners) for config in configs] == [True] * voters + [False] * (brokers - voters)


def test_the_next_plan_is_the_same_cluster(tmp_path: Path) -> None:
    """Cluster id and voters stay the same, even if brokers are added; with --port, all ports also stay the same."""
    for count in (3, 6):
        with contextlib.closing(Ports()) as ports:
            port = quiet_port()
            nodes = planned(tmp_path, count, ports, port)
            for node in nodes:
                node.write()
            assert [node.config.listeners[0].port for node in nodes] == list(range(port, port + count))
            assert len(nodes[0].config.controller_quorum_voters) == 3
            assert nodes[0].config.controller_quorum_voters[0].port == port + 100
            if count == 3:
                first = nodes[0].config.cluster_id
            assert {node.config.cluster_id for node in nodes} == {first}


def test_a_properties_file_has_the_planned_settings(tmp_path: Path, ports: Ports) -> None:
    odd = " back\\slash, new\nline and = : # !"
    wanted = LocalClusterOptions(2, 0, None, {"broker.rack": odd})
    for node in plan(tmp_path, wanted, {}, ports):
        node.write()
        text = (tmp_path / f"node-{node.node_id}.properties").read_text()
        assert parse_properties(text, "") == node.properties


def test_no_port_is_planned_twice(tmp_path: Path, ports: Ports) -> None:
    """The controllers of three brokers listen at --port + 100 and above, a range in which HTTP servers often listen."""
    port = steady_port(103)  # outgoing connections take no port in this range in the meantime
    with pytest.raises(ConfigError, match="choose another --port or --http-port"):
        plan(tmp_path, LocalClusterOptions(3, port, port + 102, {}), {}, ports)


def test_held_ports_are_reserved_for_the_nodes(ports: Ports) -> None:
    """The system assigns a held port to no other socket, but a node can listen on it explicitly. A port in use cannot
    be held."""
    held = [ports.hold(0) for _ in range(50)]
    for _ in range(200):
        with socket.socket() as other:
            other.bind((HOST, 0))
            assert other.getsockname()[1] not in held
    with socket.socket() as node:
        node.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        node.bind((HOST, held[0]))
        node.listen()
        with pytest.raises(ConfigError, match="choose another --port"):
            ports.hold(held[0])


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--data-dir", "{single}", "--brokers", "3"], "data of a single broker"),
        (["--data-dir", "{several}", "--brokers", "2"], "--brokers 3 or more"),
        (["--data-dir", "{several}"], "--brokers 3"),
        (["--data-dir", "{several}", "--brokers", "4", "--port", "65533"], "65536"),
        (["--data-dir", "{file}", "--brokers", "3"], "choose another --data-dir"),
        (["--ephemeral", "--brokers", "3", "--port", "{used}"], "choose another --port"),
        (["--ephemeral", "--brokers", "3", "--http-port", "{used}"], "choose another --port"),
        (["--ephemeral", "--brokers", "3", "--set", "node.id=7"], "kpybroker serve"),
        (["--ephemeral", "--brokers", "3", "--set", "num.partitons=7"], "did you mean num.partitions"),
        (["--ephemeral", "--brokers", "3", "--ready-file", "{single}"], "it is a directory"),
        (["--data-dir", "{garbled}", "--brokers", "3"], "has no controller.quorum.voters"),
        (["--data-dir", "{served}"], r"broker\.12 has the replicas of broker 12 of `kpybroker serve --brokers N`"),
        (["--data-dir", "{served}", "--brokers", "auto"], r"broker\.12 has the replicas"),
        (["--data-dir", "{left}", "--brokers", "auto"], r"broker\.12 has the replicas"),
        (["--data-dir", "{left}", "--brokers", "3"], r"broker\.12 has the replicas"),
    ],
    ids=str,
)
def test_an_impossible_plan_is_refused_and_nothing_is_written(arguments: list[str], cause: str, tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("single", "several", "file", "garbled", "served", "left")}
    places["single"].mkdir()
    (places["single"] / "meta.properties").write_text("version=1\n")
    places["several"].mkdir()
    with contextlib.closing(Ports()) as ports:
        for node in planned(places["several"], 3, ports):
            node.write()
    places["file"].write_text("a file")
    places["garbled"].mkdir()
    (places["garbled"] / "node-1.properties").write_text("node.id=1\n")
    for name in ("served", "served/broker.3", "served/broker.12", "left/broker.12"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "meta.properties").write_text("version=1\n")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.properties")}
    with socket.create_server((HOST, 0)) as used:
        where = {**places, "used": used.getsockname()[1]}
        with pytest.raises(ConfigError, match=cause):
            run_serving(["dev", "--port", "0", *(argument.format(**where) for argument in arguments)])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.properties")} == before


# ---- the processes


def test_two_runs_of_a_cluster(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ready line names all three; records have three replicas and survive a restart; SIGTERM stops all nodes
    cleanly."""
    data = tmp_path / "data"
    arguments = ["dev", "--brokers", "3", "--port", "0", "--data-dir", str(data)]
    process = start(*arguments, "--ready-file", str(tmp_path / "ready"))
    facts = ready(process)
    told = json.loads((tmp_path / "ready").read_text())
    assert {name: str(value) for name, value in told.items()} == facts
    assert len(facts["bootstrap"].split(",")) == 3
    shell = Shell(facts["bootstrap"], monkeypatch)
    assert shell("topics", "create", "kept", "--partitions", "6").code == 0
    assert shell("produce", "kept", stdin=b"".join(b"%d\n" % n for n in range(100))).code == 0
    assert [row["replication"] for row in shell("topics", "list", "--json").json] == [3]
    with pytest.raises(ConfigError, match="in use"):
        run_serving(arguments)
    code, out, log = stopped(process)
    assert (code, out) == (0, "")
    assert not (tmp_path / "ready").exists()
    assert not list(data.glob("*.ready"))
    logs = [lines_of(log, node_id) for node_id in (1, 2, 3)]
    assert sum(map(len, logs)) == log.count("\n")
    assert all(" INFO kpybroker.cluster: " in line for lines in logs for line in lines), "no warning"
    assert all(any("is the controller" in line for line in lines) for lines in logs)
    again = start(*arguments)
    shell = Shell(ready(again)["bootstrap"], monkeypatch)
    values = shell("consume", "kept", "--from-beginning", "--max", "100").out.split()
    assert sorted(map(int, values)) == list(range(100))
    assert stopped(again)[:2] == (0, "")


def test_a_broker_that_dies_is_started_again(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start("dev", "--brokers", "3", "--port", "0", "--data-dir", str(tmp_path))
    shell = Shell(ready(process)["bootstrap"], monkeypatch)
    assert shell("topics", "create", "t").code == 0
    pid = pid_of(tmp_path, 2)
    os.kill(pid, signal.SIGKILL)
    line = last_line(log_until(process, "node 2 was killed"))
    assert line == "kpybroker: node 2 was killed by signal 9; it is started again in 1 s"
    assert shell("produce", "t", stdin=b"still\n").code == 0
    assert last_line(log_until(process, "kpybroker: ")) == "kpybroker: node 2 serves clients again"
    assert pid_of(tmp_path, 2) != pid
    assert stopped(process)[0] == 0


def test_a_broker_that_was_asked_to_stop_may_be_started_alone(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM to one of the processes stops it cleanly, and it is not started again."""
    process = start("dev", "--brokers", "3", "--port", "0", "--data-dir", str(tmp_path))
    shell = Shell(ready(process)["bootstrap"], monkeypatch)
    assert shell("topics", "create", "t").code == 0
    os.kill(pid_of(tmp_path, 2), signal.SIGTERM)
    log = log_until(process, "kpybroker: ")
    assert last_line(log) == "kpybroker: node 2 has stopped; 2 of 3 still run"
    assert shell("produce", "t", stdin=b"still\n").code == 0
    alone = start("serve", "--config", str(tmp_path / "node-2.properties"))
    bootstrap = ready(alone)["bootstrap"]
    assert bootstrap in shell.bootstrap
    wait_until_in_sync(Shell(bootstrap, monkeypatch), "t", 2)
    code, out, told = stopped(alone)
    assert (code, out) == (0, "")
    assert all(" INFO kpybroker.cluster: " in line for line in told.splitlines())
    code, _, rest = stopped(process)
    assert code == 0
    for other in (1, 3):  # the controller lets the node stop once the other nodes know the new leaders
        assert any("broker 2 stops (controlled shutdown)" in line for line in lines_of(log + rest, other))


def test_no_process_survives_a_killed_parent(tmp_path: Path, start: Start) -> None:
    process = start("dev", "--brokers", "3", "--port", "0", "--data-dir", str(tmp_path))
    ready(process)
    pids = [pid_of(tmp_path, node_id) for node_id in (1, 2, 3)]
    process.kill()
    for pid in pids:
        wait_until_gone(pid)


def test_a_broker_that_cannot_start_stops_all_with_its_reason(tmp_path: Path, start: Start) -> None:
    (tmp_path / "node-2").write_text("not a directory")
    out, err = start("dev", "--brokers", "3", "--port", "0", "--data-dir", str(tmp_path)).communicate(timeout=WAIT_S)
    assert out == ""
    reason = lines_of(err, 2)[-1].removeprefix("node 2 | ")
    assert reason.startswith("kpybroker: cannot write to ")
    assert err.splitlines()[-1] == f"kpybroker: node 2 ended with code 2: {reason}"


def test_an_ephemeral_cluster_stops_with_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Start
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process = start("dev", "--brokers", "3", "--port", "0", "--ephemeral", "--until-stdin-closes")
    bootstrap = ready(process)["bootstrap"]
    assert len(bootstrap.split(",")) == 3
    assert Shell(bootstrap, monkeypatch)("topics", "create", "t").code == 0
    process.communicate(timeout=WAIT_S)
    assert list(tmp_path.iterdir()) == []
