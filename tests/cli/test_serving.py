"""Tests of `dev` and `serve`: they serve when they are ready, stop on request, and report errors in one line."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kpybroker.cli.arguments import run_serving
from kpybroker.cli.process_memory import GC_THRESHOLDS
from kpybroker.client.dialer import Dialer
from kpybroker.errors import ConfigError, ErrorCode
from kpybroker.testing import Broker
from kpybroker.wire.rpc import consumer_group_heartbeat, find_coordinator
from kpybroker.world.real import real_world
from tests.cli.shell import Shell, kpybroker_process, ready

pytestmark = pytest.mark.slow

WAIT_S = 60


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Restore the signal handlers and the loop policy, which a broker that fails to start in this process does not
    restore."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    asyncio.set_event_loop_policy(None)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A dev broker with its own directory and ready file."""
    process = kpybroker_process(
        "dev", "--port", "0", "--data-dir", str(tmp_path / "data"), "--ready-file", str(tmp_path / "ready")
    )
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_one_run(running: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ready line and the ready file agree, the broker serves, a second broker is refused, and SIGTERM ends the
    broker with exit code 0."""
    facts = ready(running)
    told = json.loads((tmp_path / "ready").read_text())
    assert {name: str(value) for name, value in told.items()} == facts
    assert facts["data"] == str(tmp_path / "data")
    assert int(facts["pid"]) == running.pid
    shell = Shell(facts["bootstrap"], monkeypatch)
    assert shell("topics", "create", "kept").code == 0
    port = facts["bootstrap"].rpartition(":")[2]
    for its_port in ("0", port):
        with pytest.raises(ConfigError, match=r"in use by another.* --port 0 and --data-dir DIRECTORY or --ephemeral"):
            run_serving(["dev", "--port", its_port, "--data-dir", str(tmp_path / "data")])
    with pytest.raises(ConfigError, match="choose another port"):
        run_serving(["dev", "--ephemeral", "--port", port])
    taken = ["--set", f"listeners=PLAINTEXT://127.0.0.1:{port}", "--set", f"log.dirs={tmp_path / 'other'}"]
    for command in (["dev", "--port", port, "--data-dir", str(tmp_path / "other")], ["serve", *taken]):
        with pytest.raises(ConfigError, match="choose another port"):
            run_serving(command)
        assert not (tmp_path / "other").exists(), "nothing was formatted"
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=WAIT_S)
    assert (running.returncode, out, err) == (0, "", "")
    assert not (tmp_path / "ready").exists()
    with pytest.raises(ConfigError, match=r"node\.id"):
        run_serving(["serve", "--set", f"log.dirs={tmp_path / 'data'}", "--set", "node.id=7"])
    refused = shell("topics", "list")
    assert (refused.code, "kpybroker dev" in refused.err) == (1, True)


def test_the_next_start_removes_the_ready_file_of_a_killed_process(
    running: subprocess.Popen[str], tmp_path: Path
) -> None:
    """A script that waits for the file must not find the old one. The file of a running process is not removed."""
    ready(running)
    again = ["dev", "--port", "0", "--data-dir", str(tmp_path / "data"), "--ready-file", str(tmp_path / "ready")]
    with pytest.raises(ConfigError, match=r"in use|another"):
        run_serving(again)
    assert (tmp_path / "ready").exists()
    running.kill()
    running.wait()
    assert (tmp_path / "ready").exists()
    with pytest.raises(ConfigError, match=r"node\.id"):
        run_serving(["serve", "--set", f"log.dirs={tmp_path / 'data'}", "--set", "node.id=7", *again[-2:]])
    assert not (tmp_path / "ready").exists()


def run_with(change: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the program in a child, with the code `change` executed after the imports and before the start."""
    code = (
        "from kpybroker.cli import early\n"
        "early.prepare()\n"
        "import asyncio, os, signal\n"
        "from kpybroker.cli.arguments import run_serving\n"
        "from kpybroker.server.node import Node\n"
        f"{change}"
        f"run_serving(['dev', '--port', '0', '--data-dir', {str(directory)!r}])\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=False)


def test_a_signal_during_the_start_is_not_an_error(tmp_path: Path) -> None:
    """Ctrl-C arrives after all imports, when the node begins to open its directory."""
    ended = run_with(
        "begin = Node.start.__func__\n"
        "async def start(cls, *rest, **named):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return await begin(cls, *rest, **named)\n"
        "Node.start = classmethod(start)\n",
        tmp_path / "data",
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


STOP_SIGNALLED = (
    "serve = Node.start.__func__\n"
    "async def start(cls, *rest, **named):\n"
    "    node = await serve(cls, *rest, **named)\n"
    "    asyncio.get_running_loop().call_later(0, os.kill, os.getpid(), signal.{0})\n"
    "    return node\n"
    "Node.start = classmethod(start)\n"
    "end = Node.stop\n"
    "async def stop(self):\n"
    "    os.kill(os.getpid(), signal.{1})\n"
    "    await end(self)\n"
    "Node.stop = stop\n"
)
"""One signal once it serves, and another one while it stops."""


@pytest.mark.parametrize(("first", "second"), [("SIGTERM", "SIGTERM"), ("SIGINT", "SIGINT"), ("SIGINT", "SIGTERM")])
def test_one_request_to_stop_may_come_as_several_signals(tmp_path: Path, first: str, second: str) -> None:
    """`timeout` sends its signal to the process and to its group; a wrapper forwards Ctrl-C."""
    at_once = "from kpybroker.cli import lifetime\nlifetime.ONE_WISH_S = 3600\n"
    ended = run_with(at_once + STOP_SIGNALLED.format(first, second), tmp_path / "data")
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_signal_before_or_after_all_work_is_not_an_error(tmp_path: Path, number: str) -> None:
    """A signal arrives before the node is imported, and again while the interpreter ends."""
    again = f"import atexit\natexit.register(os.kill, os.getpid(), signal.{number})\n"
    ended = run_with(f"{again}os.kill(os.getpid(), signal.{number})\n", tmp_path / "data")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_second_ctrl_c_does_not_wait_for_the_stop(tmp_path: Path) -> None:
    """The stop never ends, and the user presses Ctrl-C again."""
    ended = run_with(
        "from kpybroker.cli import lifetime\n"
        "lifetime.ONE_WISH_S = 0\n"
        "async def stop(self):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    await asyncio.Event().wait()\n"
        "Node.stop = stop\n"
        "serve = Node.start.__func__\n"
        "async def start(cls, *rest, **named):\n"
        "    node = await serve(cls, *rest, **named)\n"
        "    asyncio.get_running_loop().call_later(0, os.kill, os.getpid(), signal.SIGINT)\n"
        "    return node\n"
        "Node.start = classmethod(start)\n",
        tmp_path / "data",
    )
    assert (ended.returncode, ended.stderr) == (1, "")


def test_an_ephemeral_broker_leaves_nothing_behind_and_stops_with_its_parent(tmp_path: Path) -> None:
    process = kpybroker_process(
        *("dev", "--port", "0", "--ephemeral", "--until-stdin-closes"),
        stdin=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    facts = ready(process)
    assert Path(facts["data"]).parent == tmp_path
    assert Path(facts["data"]).is_dir()
    process.communicate(timeout=WAIT_S)  # closes the child's stdin
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_the_program_reports_the_error_and_exits_with_2(tmp_path: Path) -> None:
    ended = kpybroker_process("dev", "--port", "0", "--ephemeral", "--set", "num.partitons=3")
    out, err = ended.communicate(timeout=WAIT_S)
    assert (ended.returncode, out) == (2, "")
    assert err == "kpybroker: --set: unknown setting num.partitons; did you mean num.partitions?\n"


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["dev", "--set", "port"], "name=value"),
        (["dev", "--ephemeral", "--set", "num.partitions=many"], r"many.*num\.partitions"),
        (["dev", "--ephemeral", "--set", "nonsense.at.all=1"], "unknown setting nonsense"),
        (["dev", "--ephemeral", "--set", "log.dirs=/x"], "cannot be used together"),
        (["dev", "--port", "0", "--data-dir", "{file}/below"], "choose a writable"),
        (["dev", "--port", "0", "--data-dir", "{file}"], "choose a writable"),
        (["dev", "--port", "0", "--ephemeral", "--ready-file", "{file}/ready"], "--ready-file"),
        (["dev", "--port", "0", "--ephemeral", "--ready-file", "{dir}"], "it is a directory"),
        (["serve"], "needs Kafka's settings: --config FILE"),
        (["serve", "--http-port", "0"], "needs Kafka's settings: --config FILE"),
        (["serve", "--config", "{dir}/none"], "cannot read"),
        (["serve", "--config", "{dir}"], "cannot read"),
        (["serve", "--config", "{bad}"], "line 2: .*four hexadecimal digits"),
        (["serve", "--config", "{typo}"], r"unknown setting nod\.id; did you mean node\.id\?"),
        (["serve", "--config", "{latin}"], "cannot read"),
    ],
    ids=str,
)
def test_impossible_settings_are_refused(arguments: list[str], cause: str, tmp_path: Path) -> None:
    places = {name: tmp_path / name for name in ("dir", "file", "bad", "typo", "latin")}
    places["dir"].mkdir()
    places["file"].write_text("a file")
    places["bad"].write_text("node.id=1\nbroker.rack=\\u12\n")
    places["typo"].write_text("nod.id=1\n")
    places["latin"].write_bytes(b"broker.rack=\xff\n")
    with pytest.raises(ConfigError, match=cause):
        run_serving([argument.format(**places) for argument in arguments])


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["dev", "--port", "70000"], "70000"),
        (["dev", "--port", "http"], "http"),
        (["dev", "--brokers", "0"], "kpybroker: --brokers must be auto, or from 1 to 50, not '0'; see"),
        (["dev", "--brokers", "51"], "kpybroker: --brokers must be auto, or from 1 to 50, not '51'; see"),
        (["dev", "--nope"], "--nope"),
        (["dev", "--data-dir"], "--data-dir"),
        (["dev", "--data-dir", "x", "--ephemeral"], "--ephemeral"),
        (["serve", "server.properties"], "server.properties"),
    ],
    ids=str,
)
def test_invalid_arguments(arguments: list[str], cause: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_serving(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert cause in said


def test_a_server_that_is_not_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a server responds, but not with Kafka's protocol, the error says so."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        silent = Shell(f"127.0.0.1:{server.getsockname()[1]}", monkeypatch)("topics", "list", "--timeout", "0.1")
    assert silent.code == 1
    assert "does not respond within 0.1 s" in silent.err


def test_the_first_address_that_answers_is_used(kpybroker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Shell(f"127.0.0.1:1,{kpybroker.bootstrap}", monkeypatch)("topics", "list", "--json").code == 0


@pytest.mark.parametrize(
    ("settings", "heartbeat_ms"),
    [({}, 200), ({"group.consumer.heartbeat.interval.ms": 9000}, 9000)],
)
def test_consumer_protocol_members_get_a_short_heartbeat_interval(settings: dict[str, int], heartbeat_ms: int) -> None:
    """A member is informed of a rebalance in the response to its next heartbeat, so `dev` sets a short interval by
    default."""

    async def beat(bootstrap: str) -> int:
        host, port = bootstrap.split(":")
        peer = await Dialer(real_world().network).meet(host, int(port), client_id="member")
        request = consumer_group_heartbeat.Request(
            group_id="g",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=30_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        while True:
            told = await peer.ask("ConsumerGroupHeartbeat", request)
            if told.error_code == ErrorCode.NONE:
                peer.close()
                return int(told.heartbeat_interval_ms)
            assert told.error_code in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
            await peer.ask("FindCoordinator", find_coordinator.Request(key_type=0, coordinator_keys=["g"]))

    with Broker(settings) as broker:
        assert asyncio.run(beat(broker.bootstrap)) == heartbeat_ms


def test_a_young_collection_scans_few_objects() -> None:
    """The objects of a long request are alive until its response is sent, so scanning them is a waste of time."""
    young, middle, _ = GC_THRESHOLDS
    assert young * (middle + 1) <= 60_000


def test_a_broker_serves_though_its_standard_output_is_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts, data = tmp_path / "ready", str(tmp_path / "data")
    command = [sys.executable, "-m", "kpybroker", "dev", "--port", "0", "--data-dir", data, "--ready-file", str(facts)]
    with (
        open("/dev/full", "w") as full,
        subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr is not None
        said = process.stderr.readline()
        assert said.startswith("kpybroker: cannot write to standard output: No space left on device; ")
        bootstrap = json.loads(facts.read_text())["bootstrap"]
        assert Shell(bootstrap, monkeypatch)("topics", "list", "--json").code == 0
        process.terminate()
        assert process.stderr.read() == ""
        assert process.wait(WAIT_S) == 0
