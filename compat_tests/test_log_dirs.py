"""Tests of two log.dirs: Kafka's tools move replicas between them while a client produces, one directory may fail, and
directories may be cordoned (KIP-1066)."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.changing import PATIENCE_S, until
from compat_tests.conftest import Running
from kpybroker.errors import ErrorCode
from kpybroker.wire.rpc import alter_replica_log_dirs, describe_log_dirs
from oracle.asking import Conversation
from oracle.broker import KPyBroker
from oracle.kafka import Kafka

TOPIC = "moved"
FEW = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2"}


@pytest.fixture
def two(target_name: str, tmp_path: Path) -> Iterator[Running]:
    """A broker with the directories `data` and `second`."""
    properties = {**FEW, "log.dirs": f"{tmp_path / 'data'},{tmp_path / 'second'}"}
    kind: type[Running] = Kafka if target_name == "kafka" else KPyBroker
    broker = kind(tmp_path, properties).start()
    yield broker
    broker.kill9()


def described(broker: Running) -> dict[str, dict[str, Any]]:
    """The output of kafka-log-dirs by the name of the directory."""
    said = broker.tool("kafka-log-dirs", "--describe").ok()
    (told,) = json.loads(next(line for line in said.splitlines() if line.startswith("{")))["brokers"]
    return {Path(each["logDir"]).name: each for each in told["logDirs"]}


def places(broker: Running, topic: str) -> dict[str, str]:
    """The directory of each partition, without future replicas."""
    return {
        row["partition"]: name
        for name, each in described(broker).items()
        for row in each["partitions"]
        if row["partition"].rpartition("-")[0] == topic and not row["isFuture"]
    }


def make(broker: Running, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    admin.create_topics([NewTopic(topic, partitions, 1)], operation_timeout=30)[topic].result(30)
    until(lambda: len(places(broker, topic)) == partitions, f"{topic} has its logs")


class Writing:
    """A client that produces to partition 0 all the time."""

    def __init__(self, broker: Running) -> None:
        self.acked: list[int] = []
        self._over = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 1, "log_level": 2}
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._over.is_set():

            def told(error: Any, _message: Any, number: int = number) -> None:
                assert error is None, error
                self.acked.append(number)

            self._producer.produce(TOPIC, b"%d" % number + b"." * 1000, partition=0, on_delivery=told)
            number += 1
            self._producer.poll(0.001)

    def goes_on(self) -> None:
        at = len(self.acked)
        until(lambda: len(self.acked) > at + 100, "the client continues")

    def end(self) -> list[int]:
        self._over.set()
        self._thread.join()
        assert self._producer.flush(PATIENCE_S) == 0
        return self.acked


def read(broker: Running, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[int] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.5):
            assert message.error() is None
            found.append(int((message.value() or b"").partition(b".")[0]))
    consumer.close()
    return found


def move(broker: Running, root: Path, goal: str) -> None:
    """Move partition 0, and wait until the move is complete."""
    plan = root / "plan.json"
    moved = {"topic": TOPIC, "partition": 0, "replicas": [1], "log_dirs": [str(root / goal)]}
    plan.write_text(json.dumps({"version": 1, "partitions": [moved]}))
    asked = ("kafka-reassign-partitions", "--reassignment-json-file", str(plan))
    said = broker.tool(*asked, "--execute", "--replica-alter-log-dirs-throttle", "50000000").ok()
    assert "Successfully started moving log directory" in said, said
    until(lambda: "completed successfully" in broker.tool(*asked, "--verify").ok(), "the move is complete")
    assert places(broker, TOPIC)[f"{TOPIC}-0"] == goal


def test_a_replica_moves_while_a_client_produces(two: Running, tmp_path: Path) -> None:
    make(two, TOPIC, 2)
    assert set(places(two, TOPIC).values()) == {"data", "second"}
    writing = Writing(two)
    until(lambda: len(writing.acked) > 1000, "there is something to move")
    for _ in range(2):  # there and back
        move(two, tmp_path, {"data": "second", "second": "data"}[places(two, TOPIC)[f"{TOPIC}-0"]])
        writing.goes_on()
    acked = writing.end()
    assert acked == sorted(acked)
    assert read(two, len(acked)) == acked
    two.stop()
    two.start()
    assert read(two, len(acked)) == acked


def test_a_missing_directory_at_the_start(two: Running, tmp_path: Path) -> None:
    make(two, TOPIC, 2)
    lost = next(name for name, at in places(two, TOPIC).items() if at == "second")
    kept = int(next(name for name, at in places(two, TOPIC).items() if at == "data").rpartition("-")[2])
    two.stop()
    (tmp_path / "second").rename(tmp_path / "saved")
    (tmp_path / "second").write_text("no directory")
    two.start()
    said = described(two)
    assert "KafkaStorageException" in said["second"]["error"]
    assert said["data"]["error"] is None
    assert lost not in places(two, TOPIC)
    producer = Producer({"bootstrap.servers": two.bootstrap, "log_level": 2})
    producer.produce(TOPIC, b"served", partition=kept)
    assert producer.flush(PATIENCE_S) == 0
    make(two, "later", 3)
    assert set(places(two, "later").values()) == {"data"}
    told = two.tool("kafka-topics", "--describe", "--topic", TOPIC).ok()
    assert [line for line in told.splitlines() if "Leader: none" in line and f"Partition: {1 - kept}" in line]
    two.stop()
    (tmp_path / "second").unlink()
    (tmp_path / "saved").rename(tmp_path / "second")
    two.start()
    assert places(two, TOPIC)[lost] == "second"
    until(
        lambda: "Leader: none" not in two.tool("kafka-topics", "--describe", "--topic", TOPIC).ok(), "all are led again"
    )


def cordon(broker: Running, *paths: str) -> None:
    """Cordon these directories, and wait until the broker shows it."""
    named = f"--add-config=cordoned.log.dirs={paths[0]}" if paths else "--delete-config=cordoned.log.dirs"
    broker.tool("kafka-configs", "--alter", "--entity-type", "brokers", "--entity-name", "1", named).ok()
    wanted = {"data", "second"} if paths == ("*",) else {Path(path).name for path in paths}
    until(lambda: cordoned(broker) == wanted, f"{wanted} are cordoned")


def cordoned(broker: Running) -> set[str]:
    with contextlib.closing(Conversation(("127.0.0.1", broker.port))) as told:
        said = told.ask("DescribeLogDirs", 5, describe_log_dirs.Request(topics=None), describe_log_dirs.Response)
    return {Path(each.log_dir).name for each in said.results if each.is_cordoned}


def refusal(broker: Running, topic: str) -> str:
    """Why a topic is not created; empty if it is."""
    try:
        make(broker, topic, 1)
    except KafkaException as refused:
        return f"{refused.args[0].name()}: {refused.args[0].str()}"
    return ""


def altered(broker: Running, topic: str, path: str) -> int:
    """The error code of a move of partition 0 to another directory."""
    one = alter_replica_log_dirs.AlterReplicaLogDirTopic(name=topic, partitions=[0])
    asked = alter_replica_log_dirs.Request(dirs=[alter_replica_log_dirs.AlterReplicaLogDir(path=path, topics=[one])])
    with contextlib.closing(Conversation(("127.0.0.1", broker.port))) as told:
        said = told.ask("AlterReplicaLogDirs", 2, asked, alter_replica_log_dirs.Response)
    return int(said.results[0].partitions[0].error_code)


def test_a_cordoned_directory_gets_no_new_replicas(two: Running, tmp_path: Path) -> None:
    """Replicas that are in it stay; if all are cordoned, no partition is created."""
    make(two, TOPIC, 2)
    before = places(two, TOPIC)
    second = str(tmp_path / "second")
    cordon(two, second)
    make(two, "other", 3)
    assert set(places(two, "other").values()) == {"data"}
    assert altered(two, "other", second) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    two.stop()
    two.start()  # the setting is in the metadata
    until(lambda: cordoned(two) == {"second"}, "it is cordoned again")
    assert places(two, TOPIC) == before
    cordon(two, "*")
    names = (f"new{number}" for number in range(1000))  # the controller learns it from the next heartbeat
    said = until(lambda: refusal(two, next(names)), "no partition is created")
    assert said.startswith("INVALID_REPLICATION_FACTOR")
    assert "cordoned" in said
    cordon(two)
    until(lambda: not refusal(two, next(names)), "partitions are created again")
    make(two, "later", 4)
    assert "second" in places(two, "later").values()
    assert altered(two, "other", second) == 0
