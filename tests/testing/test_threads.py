"""A broker in a thread of the test's process does what one in a process does, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from kpybroker.testing import Broker, BrokerStartError, Cluster

WAIT_S = 30.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"num.partitions": 2}, in_thread=True) as broker:
        yield broker


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_port_and_data_survive(end: str, broker: Broker) -> None:
    topic, bootstrap = broker.topic("orders"), broker.bootstrap
    broker.send(topic, "before")
    assert broker.pid == os.getpid()
    getattr(broker, end)()
    assert broker.ended() == []
    with pytest.raises(RuntimeError, match=r"broker 1 is stopped; call start\(\) first"):
        assert broker.pid
    host, port = bootstrap.split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    broker.start()
    assert broker.bootstrap == bootstrap
    broker.send(topic, "after")
    assert sorted(record.value or b"" for record in broker.records(topic)) == [b"after", b"before"]


def test_a_clean_stop_differs_from_a_kill(broker: Broker) -> None:
    """The mark of a clean shutdown is written by `stop`, and a killed broker writes nothing."""
    data = broker.data_of(1)
    for end, is_clean in (("stop", True), ("kill", False), ("stop", True)):
        broker.send(broker.topic("t"), "x")
        getattr(broker, end)()
        assert (data / ".kafka_cleanshutdown").exists() == is_clean
        broker.start()


def test_clients_notice_a_kill_at_once(broker: Broker) -> None:
    host, port = broker.bootstrap.split(":")
    with socket.create_connection((host, int(port))) as client:
        client.settimeout(WAIT_S)
        broker.kill()
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
    broker.start()


def test_a_paused_broker_answers_later(broker: Broker) -> None:
    topic = broker.topic(create=True)
    broker.pause()
    sent = threading.Thread(target=broker.send, args=(topic, "later"))
    sent.start()
    with pytest.raises(RuntimeError, match="broker 1 is paused, so it takes no commands"):
        broker.fault("Produce", disconnect=True).__enter__()
    broker.resume()
    sent.join(WAIT_S)
    assert [record.value for record in broker.records(topic)] == [b"later"]
    broker.pause()
    broker.kill()
    with pytest.raises(RuntimeError, match=r"broker 1 is stopped; call start\(\) first"):
        broker.pause()
    broker.start()


@pytest.mark.slow
def test_a_real_client_produces_and_consumes_in_a_group(broker: Broker) -> None:
    topic, group = broker.topic("orders", partitions=1), broker.group()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    with broker.fault("Produce", error="NOT_LEADER_OR_FOLLOWER", topic=topic, times=2) as fault:
        producer.produce(topic, b"paid")
        assert producer.flush(WAIT_S) == 0
    assert fault.hits == 2
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = consumer.poll(WAIT_S)
    assert message is not None
    assert message.value() == b"paid"
    consumer.close()
    broker.wait_until_read(group, topic)
    broker.clock.advance("8d")
    assert broker.committed(group, topic) == {}


@pytest.mark.slow
def test_brokers_in_threads_form_a_cluster() -> None:
    with Cluster(3, in_thread=True) as cluster:
        topic = cluster.topic("orders", partitions=3, config={"min.insync.replicas": 2})
        cluster.send(topic, *map(str, range(30)))
        snapshot = cluster.snapshot()
        for end, node in (("kill", 2), ("stop", 1), ("kill", 3)):
            getattr(cluster, end)(node)
            cluster.send(topic, *map(str, range(30)))
            cluster.start(node)
        assert len(cluster.records(topic)) == 120
        cluster.restore(snapshot)
        assert len(cluster.expect(topic, 30, WAIT_S)) == 30


def test_a_broker_that_cannot_start_reports_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for brokers in (1, 2):
        with pytest.raises(BrokerStartError) as raised, Cluster(brokers, {"num.partitons": 1}, in_thread=True):
            pass
        told = "kpybroker does not start: unknown setting num.partitons; did you mean num.partitions?"
        assert str(raised.value) == told
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(BrokerStartError, match=r"kpybroker does not start: cannot listen on .*in use"),
        Broker({"listeners": f"PLAINTEXT://127.0.0.1:{taken.getsockname()[1]}"}, in_thread=True),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="lists the descriptors of this process")
def test_nothing_remains_of_a_broker() -> None:
    """Threads, descriptors and log handlers are those of before, whether the broker was stopped or killed."""
    with Broker(in_thread=True):
        pass  # what is made once for the process

    def owned() -> tuple[int, int, list[logging.Handler]]:
        handlers = list(logging.getLogger("kpybroker").handlers)
        return len(os.listdir("/proc/self/fd")), threading.active_count(), handlers

    before = owned()
    for end in ("stop", "kill", "close"):
        with Broker(in_thread=True) as broker:
            broker.send("t", "x")
            getattr(broker, end)()
        deadline = time.monotonic() + WAIT_S
        while owned() != before:
            assert time.monotonic() < deadline, (end, owned(), before)
            time.sleep(0.01)


def test_the_log_has_what_this_broker_logs() -> None:
    with Broker(in_thread=True) as one, Broker(in_thread=True) as other:
        host, port = one.bootstrap.split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"\x00\x00\x00\x10no frame of kafka")
            client.settimeout(WAIT_S)
            client.recv(1)
        assert "127.0.0.1" in one.log
        assert other.log == ""
