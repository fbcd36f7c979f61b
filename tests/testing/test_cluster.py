"""Tests brokers that a test stops, kills and pauses: ports and data are kept, and nothing remains after the test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kpybroker.client.client import CommandFailed
from kpybroker.testing import Broker, BrokerStartError, Cluster, kafka, node_process, snapshot
from kpybroker.testing.node import START_TIMEOUT_S

pytestmark = pytest.mark.slow

WAIT_S = 60


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"num.partitions": 2}) as broker:
        yield broker


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.mark.parametrize("brokers", [1, 2])
@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("num.partitons", 1, "unknown setting num.partitons; did you mean num.partitions?"),
        ("num.partitions", "x", "Invalid value x for configuration num.partitions: Not a number of type INT"),
    ],
)
def test_a_broker_that_cannot_start_reports_why(
    setting: str, value: object, told: str, brokers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error refers to the Python call, not to the command line, and nothing remains of the broker."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(BrokerStartError) as raised, Cluster(brokers, {setting: value}):
        pass
    assert str(raised.value) == f"kpybroker does not start: {told}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("config", "kind", "told"),
    [
        ("num.partitions=3", TypeError, r"config is a mapping of settings, .* not str"),
        ({"": 3}, ValueError, "cannot read the name of a setting"),
        ({"num.partitions=3": ""}, ValueError, "cannot read the name of a setting"),
        ({"log.dirs": "/data"}, ValueError, "the broker has a temporary directory"),
        ({"node.id": 7}, ValueError, "node.id: the brokers have the ids from 1 on"),
    ],
)
def test_invalid_settings_are_refused_before_a_start(config: Any, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        Broker(config)


@pytest.mark.parametrize("brokers", [0, 51])
def test_too_many_brokers_are_refused(brokers: int) -> None:
    with pytest.raises(ValueError, match="must be from 1 to 50"):
        Cluster(brokers)


@pytest.mark.parametrize(
    ("arguments", "kind", "told"),
    [
        ({"brokers": "3"}, TypeError, "brokers='3': give a number, such as brokers=3"),
        ({"brokers": True}, TypeError, "brokers=True: give a number"),
        ({"port": 70_000}, ValueError, "port=70000: must be from 0 to 65535"),
        ({"in_thread": "no"}, TypeError, "in_thread='no': give True or False"),
        ({"secure": 1}, TypeError, "secure=1: give True or False"),
        (
            {"config": {"kpybroker.api.versions": "Fetch:4-11"}, "api_versions": {"Produce": (3, 7)}},
            ValueError,
            "contradict each other",
        ),
        ({"api_versions": ["Fetch"]}, TypeError, "api_versions is a mapping, such as .* not list"),
        ({"api_versions": {1: (4, 11)}}, TypeError, "api_versions has the key 1: give the name of a request"),
    ],
)
def test_wrong_arguments_are_refused_before_a_start(
    arguments: dict[str, Any], kind: type[Exception], told: str
) -> None:
    with pytest.raises(kind, match=told):
        Cluster(**arguments)


def test_only_one_broker_can_be_secure() -> None:
    with pytest.raises(ValueError, match="secure=True is for one broker"):
        Cluster(3, secure=True)


def test_before_the_start_and_for_unknown_brokers_the_error_names_the_way_out(broker: Broker) -> None:
    with pytest.raises(RuntimeError, match="this Broker has not been started; use it in a `with` statement"):
        assert Broker().bootstrap
    with pytest.raises(RuntimeError, match="has not been started"):
        Broker().stop(1)
    with pytest.raises(RuntimeError, match="has not been started"), Broker().fault("Produce", disconnect=True):
        pass
    with pytest.raises(RuntimeError, match="has not been started"):
        Broker().pause()
    with pytest.raises(RuntimeError, match=r"broker 2 cannot serve without the others; call start\(\) first"):
        Cluster(3).start(2)
    for use in (lambda: Broker().pid, lambda: Broker().client, lambda: Cluster().pid_of(1)):
        with pytest.raises(RuntimeError, match="has not been started"):
            use()
    assert repr(Broker()) == "<Broker not started>"
    with pytest.raises(ValueError, match="there is no broker 2: this Broker has broker 1"):
        broker.kill(2)
    for wrong in ("1", True):
        given: Any = wrong
        with pytest.raises(TypeError, match=f"node={wrong!r}: give a whole number"):
            broker.kill(given)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_port_and_data_survive(end: str, broker: Broker) -> None:
    topic, bootstrap, pid = broker.topic("orders"), broker.bootstrap, broker.pid
    broker.send(topic, "before")
    getattr(broker, end)()
    assert broker.ended() == []
    with pytest.raises(RuntimeError, match=r"broker 1 is stopped; call start\(\) first"):
        assert broker.pid
    host, port = bootstrap.split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    broker.start()
    assert (broker.bootstrap, broker.pid != pid) == (bootstrap, True)
    broker.send(topic, "after")
    assert sorted(record.value or b"" for record in broker.records(topic)) == [b"after", b"before"]


def test_a_restarted_broker_is_another_process(broker: Broker) -> None:
    pid = broker.pid
    broker.restart()
    assert broker.pid != pid
    pid = broker.pid
    broker.start()
    assert broker.pid == pid, "it runs already"


def test_a_paused_broker_answers_later(broker: Broker) -> None:
    """The connection is accepted by the kernel, and the request waits."""
    broker.pause()
    state = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(") ")[2][0] if sys.platform == "linux" else "T"
    assert state == "T"
    broker.resume()
    assert broker.records(broker.topic(create=True)) == []
    broker.pause()
    broker.kill()
    with pytest.raises(RuntimeError, match=r"broker 1 is stopped; call start\(\) first"):
        broker.pause()
    broker.start()


def test_one_broker_of_three_can_be_killed_and_started(cluster: Cluster) -> None:
    topic = cluster.topic("orders", partitions=3, config={"min.insync.replicas": 2})
    cluster.send(topic, *map(str, range(30)))
    bootstrap = cluster.bootstrap
    cluster.kill(2)
    assert cluster.ended() == []
    cluster.send(topic, *map(str, range(30, 60)))
    cluster.start(2)
    assert cluster.bootstrap == bootstrap
    cluster.stop(1)
    cluster.send(topic, *map(str, range(60, 90)))
    cluster.start(1)
    assert {record.value for record in cluster.records(topic)} == {str(number).encode() for number in range(90)}


def test_all_brokers_can_stop_and_start(cluster: Cluster) -> None:
    topic = cluster.topic("orders", partitions=1)
    cluster.send(topic, "kept")
    cluster.restart()
    assert [record.value for record in cluster.expect(topic, 1, WAIT_S)] == [b"kept"]


@pytest.mark.parametrize("brokers", [1, 3])
def test_nothing_is_wrong_after_a_stop_and_a_start(brokers: int) -> None:
    """The processes end without an error, and the replicas are in sync at the next start."""
    with Cluster(brokers) as cluster:
        topic = cluster.topic("orders", partitions=3)
        cluster.send(topic, *"abc")
        cluster.restart()
        assert len(cluster.expect(topic, 3, WAIT_S)) == 3
        wrong = [line for line in cluster.log.splitlines() if " INFO " not in line and not line.startswith("node-")]
        assert [line for line in wrong if line.strip()] == []


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_killed_broker_leaves_no_directory(brokers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Cluster(brokers) as cluster:
        assert len(list(tmp_path.iterdir())) == 1
        assert cluster.ended() == []
        pid = cluster.pid_of(1)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert cluster.ended() == ["broker 1 ended with code -9 (SIGKILL)"]
    assert list(tmp_path.iterdir()) == []


def test_in_a_coroutine(broker: Broker) -> None:
    """Covers `async with`, and calls from a thread that has an event loop."""

    async def there_and_back() -> list[bytes | None]:
        async with Broker() as own:
            own.send("orders", "paid")
            return [record.value for record in own.records("orders")]

    assert asyncio.run(there_and_back()) == [b"paid"]


def test_without_a_with_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers calls of `start` and `close`, as testcontainers' KafkaContainer is used in a fixture."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kafka = Broker().start()
    try:
        kafka.send("orders", "paid")
        assert kafka.get_bootstrap_server() == kafka.bootstrap_servers == kafka.bootstrap
    finally:
        kafka.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError, match="this Broker is closed and its data is removed; create another one"):
        kafka.start()


def test_metrics_are_served_where_asked_for() -> None:
    with Broker({"kpybroker.http.port": 0}) as broker:
        (address,) = broker.http
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert b" 200 " in connection.recv(100)


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_cluster_returns_to_its_snapshots(brokers: int) -> None:
    """Records, topics and committed offsets are those of the snapshot, as often as it is restored."""
    with Cluster(brokers) as cluster:
        topic = cluster.topic("orders", partitions=2)
        cluster.send(topic, "1")
        first = cluster.snapshot()
        cluster.send(topic, "2")
        if brokers == 3:
            cluster.kill(2)
        second = cluster.snapshot()
        if brokers == 3:
            with pytest.raises(RuntimeError, match="broker 2 is stopped"):
                cluster.pid_of(2)
        cluster.start()
        later = cluster.topic("later", create=True)
        for saved, values in ((first, [b"1"]), (second, [b"1", b"2"]), (first, [b"1"])):
            bootstrap = cluster.bootstrap
            cluster.restore(saved)
            assert sorted(record.value or b"" for record in cluster.expect(topic, len(values), WAIT_S)) == values
            assert cluster.bootstrap == bootstrap
            with pytest.raises(CommandFailed):
                cluster.records(later)
            cluster.send(topic, "lost with the next restore")


def test_snapshots_are_limited_and_belong_to_one_cluster(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "SNAPSHOTS_MAX", 2)
    taken = [broker.snapshot() for _ in range(2)]
    with pytest.raises(ValueError, match="at most 2 snapshots"):
        broker.snapshot()
    assert broker.records(broker.topic(create=True)) == [], "it runs again"
    with pytest.raises(RuntimeError, match="has not been started; use it in a `with` statement"):
        Broker().snapshot()
    with Broker() as other:
        with pytest.raises(ValueError, match="is of another cluster"):
            other.restore(taken[0])
        own = other.snapshot()
    with pytest.raises(RuntimeError, match="this Broker is closed and its data is removed"):
        other.restore(own)
    wrong: Any = "first"
    with pytest.raises(TypeError, match=r"'first' is no snapshot; take one with Broker.snapshot\(\)"):
        broker.restore(wrong)


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_paused_broker_is_paused_again_after_a_snapshot(in_thread: bool) -> None:
    with Cluster(2, in_thread=in_thread) as cluster:
        cluster.pause(2)
        cluster.snapshot()
        assert cluster.paused() == ["broker 2 is paused; resume(2) lets it continue"]
        cluster.resume()
        assert cluster.paused() == []


def test_calls_at_paused_brokers_name_them_and_end_in_time(broker: Broker) -> None:
    """The named reasons are notes of the error."""
    broker.pause()
    began = time.monotonic()
    try:
        with pytest.raises(CommandFailed) as raised:
            broker.expect("orders", 1, 0.5)
        took_s = time.monotonic() - began
    finally:
        broker.resume()
    assert raised.value.__notes__ == ["broker 1 is paused; resume(1) lets it continue"]
    assert took_s < kafka.TIMEOUT_S / 2, "it does not wait as long as other calls"
    for timeout_s, kind in ((float("nan"), ValueError), (-1.0, ValueError), ("2", TypeError)):
        given: Any = timeout_s
        with pytest.raises(kind, match="timeout_s="):
            broker.expect("orders", 1, given)


@pytest.mark.parametrize("in_thread", [False, True])
def test_calls_of_several_threads_take_turns(in_thread: bool) -> None:
    """Without turns, a broker is stopped while another thread starts it or asks it for what it has recorded."""
    with Cluster(3, in_thread=in_thread) as cluster:
        topic = cluster.topic("orders", partitions=3)
        cluster.send(topic, *"123")

        def use(node: int) -> None:
            for _ in range(2):
                cluster.restart(node)
                with cluster.fault("Produce", error="NOT_LEADER_OR_FOLLOWER", topic=topic, node=node):
                    cluster.pause(node)
                    cluster.resume(node)

        with cluster.record() as recording, ThreadPoolExecutor(4) as threads:
            calls = [threads.submit(use, node) for node in cluster.nodes]
            calls.append(threads.submit(lambda: [len(recording) for _ in range(20)]))
            for call in calls:
                call.result(2 * WAIT_S)
        with ThreadPoolExecutor(2) as threads:
            for halting in (threads.submit(cluster.snapshot), threads.submit(cluster.restart, 2)):
                halting.result(2 * WAIT_S)
        assert (cluster.running_nodes, cluster.paused(), cluster.ended()) == ([1, 2, 3], [], [])
        assert len(cluster.expect(topic, 3, WAIT_S)) == 3


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_cluster_that_is_closed_during_a_rolling_restart_leaves_nothing(
    in_thread: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cluster = Cluster(2, in_thread=in_thread).start()
    with contextlib.suppress(RuntimeError), cluster.weather("rolling_restart"):  # the restart is told that it is closed
        cluster.close()
    assert cluster.running_nodes == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_restart_that_waits_for_its_turn_starts_nothing_after_the_close(in_thread: bool) -> None:
    broker = Broker(in_thread=in_thread).start()
    with ThreadPoolExecutor(1) as thread:
        with broker._starting:  # noqa: SLF001  # as if this thread were starting a broker
            restarting = thread.submit(broker.restart)
            time.sleep(0.2)  # it waits by now
            broker.close()
        with pytest.raises(RuntimeError, match="this Broker is closed"):
            restarting.result(WAIT_S)
    assert broker.running_nodes == []


def test_a_rolling_restart_starts_no_broker_that_was_stopped() -> None:
    with Cluster(3, in_thread=True) as cluster:
        cluster.kill(3)
        with cluster.weather("rolling_restart"):
            pass
        assert cluster.running_nodes == [1, 2]


@pytest.mark.parametrize("delay_s", [0, 0.004, 0.01])
@pytest.mark.parametrize("in_thread", [False, True])
def test_a_start_that_is_cancelled_leaves_nothing(
    in_thread: bool, delay_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends long before a start that fails would time out."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cluster = Cluster(3, in_thread=in_thread)

    async def start() -> None:
        async with asyncio.timeout(delay_s), cluster:
            raise AssertionError("the start takes longer")

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(start())
    assert time.monotonic() - began < START_TIMEOUT_S / 2
    assert cluster not in Cluster.running
    assert not any(thread.name.startswith("broker ") for thread in threading.enumerate())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_broker_that_is_killed_while_it_starts_can_be_started_again(in_thread: bool) -> None:
    with Broker(in_thread=in_thread) as broker, ThreadPoolExecutor(1) as thread:
        for _ in range(5):
            broker.kill()
            starting = thread.submit(broker.start)
            while not (broker.running_nodes or starting.done()):
                time.sleep(0.001)
            broker.kill()
            ended = starting.exception(START_TIMEOUT_S / 2)
            assert ended is None or re.search("was stopped while it started|SIGKILL", str(ended))
        broker.start()
        with broker.fault("Produce", disconnect=True) as fault:
            assert fault.hits == 0


def test_brokers_that_need_each_other_are_started_by_several_threads() -> None:
    """None is called paused before it is ready."""
    with Cluster(3) as cluster:
        cluster.kill()
        with ThreadPoolExecutor(3) as threads:
            starts = [threads.submit(cluster.start, node) for node in cluster.nodes]
            while not all(start.done() for start in starts):
                assert cluster.paused() == []
        assert [start.result() for start in starts] == [cluster] * 3
        assert len(cluster.in_sync(cluster.topic(create=True))) == 3


def test_a_start_that_takes_too_long_leaves_a_stopped_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    with Cluster(3) as cluster:
        cluster.kill()
        with monkeypatch.context() as patch:
            patch.setattr(node_process, "START_TIMEOUT_S", 0.01)
            with pytest.raises(BrokerStartError, match=r"not ready after 0\.01 s"):
                cluster.start(1)
        assert cluster.running_nodes == []
        cluster.start()
        with cluster.fault("Produce", disconnect=True) as fault:
            assert fault.hits == 0


def test_an_answer_that_comes_too_late_is_not_taken_for_another(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_process, "STOP_TIMEOUT_S", 0.2)
    os.kill(broker.pid, signal.SIGSTOP)
    with pytest.raises(RuntimeError, match="broker 1 did not answer a command"):
        assert broker.requests
    os.kill(broker.pid, signal.SIGCONT)
    monkeypatch.setattr(node_process, "STOP_TIMEOUT_S", WAIT_S)
    broker.clock.advance("1ms")
    with broker.record() as recording, broker.fault("Produce", disconnect=True) as fault:
        assert (fault.hits, len(recording)) == (0, 0)


def test_none_is_paused_if_one_is_stopped() -> None:
    with Cluster(3, in_thread=True) as cluster:
        cluster.kill(3)
        with pytest.raises(RuntimeError, match=r"broker 3 is stopped; call start\(\) first"):
            cluster.pause()
        assert cluster.paused() == []


def test_a_wait_at_several_paused_brokers_keeps_its_time_out() -> None:
    with Cluster(3, in_thread=True) as cluster:
        cluster.pause()
        began = time.monotonic()
        with pytest.raises(CommandFailed, match=r"did not respond within 3\.0 s"):
            cluster.expect("orders", 1, 3)
        assert time.monotonic() - began < 6, "not three seconds for each"
        cluster.resume()
