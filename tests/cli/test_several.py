"""Tests of the processes of `dev --brokers auto` and `serve --brokers`: one process, one log, one HTTP port."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer
from prometheus_client.parser import text_string_to_metric_families

from kpybroker.world.usable_cores import usable_cores
from oracle.target import steady_port
from tests.cli.running import WAIT_S, Start, ended, last_line, log_until, pid_of, stopped
from tests.cli.shell import Shell, kpybroker_process, ready

pytestmark = pytest.mark.slow

RECORDS = 6000
KILLS = 2
ONE_CORE = (
    "import os, sys\n"
    "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'kpybroker', *sys.argv[1:]])\n"
)


def page(address: str, path: str, token: str | None = None) -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it does not become true"


def samples(text: str, name: str) -> dict[str, float]:
    """The samples of a metric without further labels, by node."""
    families = text_string_to_metric_families(text)
    return {
        sample.labels["node"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and set(sample.labels) == {"node"}
    }


def leaders(shell: Shell, topic: str) -> list[int]:
    return [each["leader"] for each in shell("topics", "describe", topic, "--json").json[0]["partitions"]]


def properties(directory: Path, name: str = "server.properties", **more: str) -> Path:
    port = steady_port(5)
    lines = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(directory / "data"),
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    path = directory / name
    path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    return path


def test_there_is_one_broker_for_each_core(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics have one replica, and the leaders are spread evenly; so are those of the internal topics."""
    cores = usable_cores()
    process = start("dev", "--brokers", "auto", "--port", "0", "--data-dir", str(tmp_path))
    facts = ready(process)
    assert f"kpybroker: {cores} broker" in log_until(process, "usable core")
    assert len(facts["bootstrap"].split(",")) == cores
    assert int(facts["pid"]) == process.pid
    shell = Shell(facts["bootstrap"], monkeypatch)
    assert shell("topics", "create", "t", "--partitions", str(3 * cores)).code == 0
    assert sorted(Counter(leaders(shell, "t")).values()) == [3] * cores
    assert {row["replication"] for row in shell("topics", "list", "--json").json} == {1}
    assert shell("produce", "t", stdin=b"one\n").code == 0
    assert shell("consume", "t", "--group", "g", "--from-beginning", "--max", "1").out == "one\n"
    assert len(set(leaders(shell, "__consumer_offsets"))) == cores
    assert stopped(process)[:2] == (0, "")


def test_one_core_needs_one_broker(tmp_path: Path) -> None:
    arguments = ("dev", "--brokers", "auto", "--port", "0", "--data-dir", str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", ONE_CORE, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert len(ready(process)["bootstrap"].split(",")) == 1
        assert stopped(process) == (0, "", "kpybroker: 1 broker (one for each of 1 usable core)\n")
        assert (tmp_path / "meta.properties").exists(), "it is the directory of a single broker"
    finally:
        process.kill()
        process.communicate()


def test_auto_serves_all_brokers_that_have_data(tmp_path: Path, start: Start) -> None:
    """A machine may have fewer cores than before."""
    brokers = usable_cores() + 1
    arguments = ("--port", "0", "--data-dir", str(tmp_path))
    first = start("dev", "--brokers", str(brokers), *arguments)
    ready(first)
    assert stopped(first)[0] == 0
    again = start("dev", "--brokers", "auto", *arguments)
    assert f"kpybroker: {brokers} brokers (broker number {brokers} has data" in log_until(again, "usable core")
    assert len(ready(again)["bootstrap"].split(",")) == brokers
    assert stopped(again)[0] == 0


def test_acknowledged_records_survive_killed_brokers(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idempotent producer sends while brokers are killed, each of which has the only replica of its partitions. Each
    acknowledged record is there exactly once."""
    config = properties(tmp_path)
    process = start("serve", "--config", str(config), "--brokers", "2", "--ready-file", str(tmp_path / "ready"))
    bootstrap = ready(process)["bootstrap"]
    shell = Shell(bootstrap, monkeypatch)
    assert shell("topics", "create", "t", "--partitions", "4", "--replication", "1").code == 0
    before = leaders(shell, "t")
    assert sorted(before) == [1, 1, 2, 2]
    acknowledged: list[bytes] = []

    def take(error: object, message: Message) -> None:
        assert error is None, error
        acknowledged.append(message.value() or b"")

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 1})
    for number in range(RECORDS):
        producer.produce("t", str(number).encode(), partition=number % 4, on_delivery=take)
        producer.poll(0)
        if number % (RECORDS // KILLS) == RECORDS // KILLS // 2:
            seen = len(acknowledged)
            while len(acknowledged) == seen:
                producer.poll(0.01)
            node = 2 - number * KILLS // RECORDS % 2
            os.kill(child_of(process, node), signal.SIGKILL)
            assert "node 3" not in log_until(process, f"node {node} serves clients again")
    assert producer.flush(WAIT_S) == 0
    assert Counter(acknowledged) == Counter(str(number).encode() for number in range(RECORDS))
    found = shell("consume", "t", "--from-beginning", "--max", str(RECORDS)).out.split()
    assert Counter(found) == Counter(map(str, range(RECORDS)))
    ends = [each["end"] for each in shell("topics", "describe", "t", "--json").json[0]["partitions"]]
    assert ends == [RECORDS // 4] * 4, "nothing is there twice"
    assert leaders(shell, "t") == before
    assert stopped(process)[0] == 0
    assert not (tmp_path / "ready").exists()


def children_of(process: subprocess.Popen[str]) -> list[int]:
    """The process ids of its nodes."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def child_of(process: subprocess.Popen[str], node_id: int) -> int:
    """The process id of a node of `serve`."""
    for pid in children_of(process):
        if f"node.id={node_id}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return pid
    raise AssertionError(f"no process is node {node_id}")


def test_a_broker_that_cannot_start_again_ends_all_with_its_reason(tmp_path: Path, start: Start) -> None:
    process = start("dev", "--brokers", "2", "--port", "0", "--data-dir", str(tmp_path))
    ready(process)
    (tmp_path / "node-2" / "meta.properties").write_text("version=9\n")
    os.kill(pid_of(tmp_path, 2), signal.SIGKILL)
    code, out, log = ended(process)
    assert (code, out) == (1, "")
    assert log.count("it is started again") == 3
    assert last_line(log).startswith("kpybroker: stopped: node 2 ended with code 2: kpybroker: ")
    assert "has version 9" in last_line(log)
    assert last_line(log).endswith("it did not start 3 times in a row")
    assert not (tmp_path / "node-1.ready").exists(), "the other one was stopped cleanly"


def test_a_derived_port_in_use_is_explained(tmp_path: Path, start: Start) -> None:
    config = properties(tmp_path)
    port = int(config.read_text().partition("PLAINTEXT://127.0.0.1:")[2].partition(",")[0]) + 2
    with socket.create_server(("127.0.0.1", port)):
        code, out, log = ended(start("serve", "--config", str(config), "--brokers", "2"))
    assert (code, out) == (2, "")
    assert f"cannot listen on 127.0.0.1:{port}" in last_line(log)
    end = "the ports of node 2 follow from those of node 1: choose other ones in listeners"
    assert last_line(log).endswith(end)


def test_a_broker_that_is_killed_before_all_have_started_ends_all(tmp_path: Path, start: Start) -> None:
    """That is no wrong setting."""
    process = start("serve", "--config", str(properties(tmp_path)), "--brokers", "9")
    while (pid := next(iter(children_of(process)), None)) is None:
        assert process.poll() is None
    os.kill(pid, signal.SIGKILL)
    code, out, log = ended(process)
    assert (code, out) == (1, "")
    assert last_line(log) == "kpybroker: stopped: node 1 was killed by signal 9"


def test_a_restarted_broker_has_the_settings_of_the_start(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise node 1 would found its cluster again in an empty directory, and the others would follow it."""
    config = properties(tmp_path)
    process = start("serve", "--config", str(config), "--brokers", "2")
    shell = Shell(ready(process)["bootstrap"], monkeypatch)
    shell("topics", "create", "t", "--partitions", "4", "--replication", "1")
    assert shell("produce", "t", stdin=b"1\n2\n3\n4\n5\n6\n7\n8\n").code == 0
    config.write_text(config.read_text().replace(str(tmp_path / "data"), str(tmp_path / "elsewhere")))
    for node_id in (1, 2):
        os.kill(child_of(process, node_id), signal.SIGKILL)
        log_until(process, f"node {node_id} serves clients again")
    assert sorted(shell("consume", "t", "--from-beginning", "--max", "8").out.split()) == list("12345678")
    assert stopped(process)[0] == 0
    assert not (tmp_path / "elsewhere").exists()


def test_settings_may_be_in_a_pipe(tmp_path: Path, start: Start) -> None:
    """It can be read once."""
    config = properties(tmp_path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = start("serve", "--config", str(pipe), "--brokers", "2")
    pipe.write_text(config.read_text())
    assert len(ready(process)["bootstrap"].split(",")) == 2
    assert stopped(process)[0] == 0


def test_a_directory_that_disappears_is_never_formatted_again(tmp_path: Path, start: Start) -> None:
    process = start("serve", "--config", str(properties(tmp_path)), "--brokers", "2")
    ready(process)
    (tmp_path / "data").rename(tmp_path / "aside")
    (tmp_path / "data").mkdir()
    (tmp_path / "aside" / "broker.2").rename(tmp_path / "data" / "broker.2")
    os.kill(child_of(process, 1), signal.SIGKILL)
    code, _, log = ended(process)
    end = f"kpybroker: stopped: {tmp_path}/data of node 1 has no meta.properties any more; restore it"
    assert (code, last_line(log)) == (1, end)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["broker.2"]


def test_metadata_that_the_controller_lacks_ends_all(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another start of the broker would not help."""
    arguments = ("serve", "--config", str(properties(tmp_path)), "--brokers", "2")
    data, old = tmp_path / "data", tmp_path / "old"
    process = start(*arguments)
    ready(process)
    assert stopped(process)[0] == 0
    shutil.copytree(data, old, ignore=shutil.ignore_patterns("broker.2"))
    process = start(*arguments)
    shell = Shell(ready(process)["bootstrap"], monkeypatch)
    assert shell("topics", "create", "t", "--partitions", "200").code == 0
    first = child_of(process, 1)
    os.kill(process.pid, signal.SIGSTOP)  # so that it starts node 1 again only when its old directory is back
    os.kill(first, signal.SIGKILL)
    for path in [path for path in data.iterdir() if path.name != "broker.2"]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(old, data, dirs_exist_ok=True)
    os.kill(process.pid, signal.SIGCONT)
    code, _, log = ended(process)
    assert code == 1
    assert "node 2 ended with code 3: kpybroker: stopped: the leader of the quorum lacks committed" in last_line(log)
    assert "node 2" not in "".join(line for line in log.splitlines() if "is started again" in line)


def test_one_port_has_the_pages_of_all_nodes(tmp_path: Path, start: Start) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    arguments = ("--http-port", "0", "--set", f"kpybroker.http.token.file={token}", "--data-dir", str(tmp_path / "d"))
    process = start("dev", "--brokers", "2", "--port", "0", *arguments)
    address = ready(process)["http"]
    until(lambda: page(address, "/readyz") == (200, "ready\n"))
    assert page(address, "/healthz") == (200, "ok\n")
    assert page(address, "/metrics")[0] == 401
    assert page(address, "/metrics", "another-token-xx")[0] == 401
    status, text = page(address, "/metrics", "0123456789abcdef")
    assert status == 200
    assert samples(text, "kpybroker_node_up") == {"1": 1, "2": 1}
    assert sum(samples(text, "kafka_controller_kafkacontroller_activecontrollercount").values()) == 1
    types = [line for line in text.splitlines() if line.startswith("# TYPE ")]
    assert len(types) == len(set(types)), "each metric has one group of lines"
    assert all('node="' in line for line in text.splitlines() if not line.startswith("#"))
    os.kill(child_of(process, 2), signal.SIGKILL)
    log_until(process, "node 2 was killed by signal 9; it is started again")
    assert page(address, "/healthz") == (200, "ok\n"), "a probe would kill node 1, too"
    until(lambda: page(address, "/readyz") == (200, "ready\n"))
    os.kill(pid_of(tmp_path / "d", 2), signal.SIGTERM)
    log_until(process, "node 2 has stopped")
    for path in ("/healthz", "/readyz"):
        status, said = page(address, path)
        assert (status, "node 2: no answer" in said) == (503, True)
    assert samples(page(address, "/metrics", "0123456789abcdef")[1], "kpybroker_node_up") == {"1": 1, "2": 0}
    assert stopped(process)[0] == 0


def test_the_directory_of_one_broker_gets_more_brokers_and_loses_them(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = str(properties(tmp_path))

    def served(*arguments: str) -> tuple[subprocess.Popen[str], Shell]:
        process = start("serve", "--config", config, *arguments)
        return process, Shell(ready(process)["bootstrap"], monkeypatch)

    def refused(*arguments: str) -> str:
        code, out, err = ended(start("serve", "--config", config, *arguments, "--until-stdin-closes"))
        assert (code, out) == (2, "")
        return err

    process, shell = served()
    shell("topics", "create", "old", "--partitions", "2")
    shell("produce", "old", stdin=b"one\ntwo\n")
    assert stopped(process)[0] == 0
    for brokers in (2, 3):
        process, shell = served("--brokers", str(brokers))
        assert [node["node_id"] for node in shell("brokers", "list", "--json").json] == list(range(1, brokers + 1))
        topic = f"with-{brokers}"
        shell("topics", "create", topic, "--partitions", str(brokers), "--replication", "1")
        assert sorted(leaders(shell, topic)) == list(range(1, brokers + 1))
        assert sorted(shell("consume", "old", "--from-beginning", "--max", "2").out.split()) == ["one", "two"]
        assert stopped(process)[:2] == (0, "")
    for fewer in ((), ("--brokers", "1"), ("--brokers", "2")):
        assert "replicas of broker 3" in refused(*fewer)
    process, shell = served("--brokers", "3")
    shell("reassign", "start", "--all-topics", "--brokers", "1", "--execute", "--wait")
    shell("topics", "create", "late", "--partitions", "3", "--replication", "1")
    shell("produce", "late", stdin=b"a\nb\nc\nd\ne\nf\n")
    assert stopped(process)[0] == 0

    def alone() -> list[int]:
        """The exit codes of `unregister` for both, with their directories moved aside, and back if one refused."""
        nonlocal process, shell
        for node_id in (2, 3):
            (tmp_path / "data" / f"broker.{node_id}").rename(tmp_path / f"aside.{node_id}")
        process, shell = served()
        codes = [shell("brokers", "unregister", str(node_id)).code for node_id in (2, 3)]
        if any(codes):
            assert stopped(process)[0] == 0
            for node_id in (2, 3):
                (tmp_path / f"aside.{node_id}").rename(tmp_path / "data" / f"broker.{node_id}")
        return codes

    assert alone() == [1, 1], "a topic was created after its replicas had moved"
    process, shell = served("--brokers", "3")
    shell("reassign", "start", "--all-topics", "--brokers", "1", "--execute", "--wait")
    assert stopped(process)[0] == 0
    assert alone() == [0, 0]
    assert leaders(shell, "with-3") == [1, 1, 1]
    assert sorted(shell("consume", "late", "--from-beginning", "--max", "6").out.split()) == list("abcdef")
    assert stopped(process)[0] == 0


def test_the_environment_of_a_container_gives_several_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = steady_port(4)
    environment = {
        **os.environ,
        "KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
        "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://localhost:{port}",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": f"1@localhost:{port + 1}",
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_LOG_DIRS": str(tmp_path / "data"),
    }
    process = kpybroker_process("serve", "--from-env", "--brokers", "2", env=environment)
    try:
        bootstrap = ready(process)["bootstrap"].split(",")
        assert len(bootstrap) == 2
        for address in bootstrap:
            nodes = json.loads(Shell(address, monkeypatch)("brokers", "list", "--json").out)
            assert [(node["host"], node["port"]) for node in nodes] == [("localhost", port), ("localhost", port + 2)]
        assert stopped(process)[:2] == (0, "")
    finally:
        process.kill()
        process.communicate()
