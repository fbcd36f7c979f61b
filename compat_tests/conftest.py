"""Fixtures: the broker under test, which is started once, and unique names for the topics and groups of each test."""

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from compat_tests.clients import CLIENTS
from kpybroker.spark import QUICK_JVM, session
from oracle.asking import Conversation
from oracle.broker import KPyBroker
from oracle.jars import KAFKA_VERSION, MissingPrerequisite, jars, java
from oracle.kafka import Kafka

os.environ.setdefault("PYTEST_TIMEOUT", "300")
"""The time limit of a test in seconds, for pytest-timeout. Not in pyproject.toml, because other users may not have that
plugin."""

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT_CODES = {"kpybroker": 0, "kafka": 143}
Running = KPyBroker | Kafka
MakeTopic = Callable[..., str]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--target", choices=tuple(EXIT_CODES), default="kpybroker", help="the broker under test")


def pytest_report_header(config: pytest.Config) -> list[str]:
    versions = ", ".join(f"{client.name} {client.version}" for client in CLIENTS)
    return [f"broker: {config.getoption('--target')}", f"clients: {versions}, Kafka's tools {KAFKA_VERSION}"]


def start_target(name: str, properties: Mapping[str, str] | None = None) -> Running:
    """Start the target with this name. The JVM of Apache Kafka is tuned for a quick start rather than for
    throughput."""
    if name == "kafka":
        quick = {"offsets.topic.num.partitions": "5", "log.initial.task.delay.ms": "500"}
        quick["transaction.state.log.num.partitions"] = "5"
        quick |= {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
        quick["transaction.abort.timed.out.transaction.cleanup.interval.ms"] = "500"
        return Kafka(properties={**quick, **(properties or {})}, jvm=("-XX:TieredStopAtLevel=1",)).start()
    return KPyBroker(properties=properties).start()


@pytest.fixture(scope="session")
def target_name(request: pytest.FixtureRequest) -> str:
    """The name of the target: kpybroker or kafka."""
    return str(request.config.getoption("--target"))


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest, target_name: str) -> Iterator[Running]:
    """The broker under test."""
    try:
        java()
        jars()
    except MissingPrerequisite as missing:
        pytest.exit(str(missing), returncode=1)
    broker = start_target(target_name)
    yield broker
    code = broker.stop()
    if request.session.testsfailed:
        print(f"\nkept for inspection: {broker.directory}")
    else:
        broker.remove()
    assert code == EXIT_CODES[target_name], f"{target_name} stopped with {code}"


@pytest.fixture(scope="session")
def spark_session(target: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """The only SparkSession of the process, because its start and stop take seconds."""
    spark = session(target.bootstrap, log=tmp_path_factory.mktemp("spark") / "spark.log", settings=QUICK_JVM)
    yield spark
    spark.stop()


@pytest.fixture
def spark(spark_session: "SparkSession") -> Iterator["SparkSession"]:
    """The session. Queries are stopped at the end of their test."""
    yield spark_session
    for query in spark_session.streams.active:
        query.stop()


@pytest.fixture
def broker(target: Running) -> Running:
    """The running broker. If an earlier test killed it and then failed, it is restarted."""
    if not target.running:
        target.restart()
    return target


def wait_until_led(admin: AdminClient, topic: str, partitions: int) -> None:
    """Wait until the topic is served: Apache Kafka responds to CreateTopics some moments before that."""
    latest = {TopicPartition(topic, at): OffsetSpec.latest() for at in range(partitions)}
    # longer than topic.metadata.propagation.max.ms, for which librdkafka may go on calling a new topic unknown
    deadline = time.monotonic() + 60
    while True:
        try:
            for found in admin.list_offsets(latest, request_timeout=10).values():
                found.result(10)
            return
        except KafkaException:
            assert time.monotonic() < deadline, f"{topic} is not served"
            time.sleep(0.05)


class Settled:
    """settled(condition): the condition must hold at once on kpybroker; Apache Kafka's brokers apply changes some
    moments after their response."""

    def __init__(self, at_once: bool) -> None:
        self.at_once = at_once

    def __call__(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + (0 if self.at_once else 10)
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture
def settled(target_name: str) -> Settled:
    return Settled(at_once=target_name != "kafka")


_numbers = itertools.count()


@pytest.fixture
def unique(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Unique names of topics and groups, which contain the name of their test."""
    test = request.node.originalname.removeprefix("test_")[:40]
    return lambda: f"{test}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
def admin(broker: Running) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})


@pytest.fixture
def make_topic(admin: AdminClient, unique: Callable[[], str], target_name: str) -> MakeTopic:
    """make_topic(partitions=1, **configs with _ for .) -> name of a new topic"""

    def make(partitions: int = 1, **configs: object) -> str:
        name = unique()
        settings = {
            "retention.ms": "-1"
        }  # tests write records with old timestamps, which the first retention check would delete
        settings |= {key.replace("_", "."): str(value) for key, value in configs.items()}
        admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(30)
        if target_name == "kafka":
            wait_until_led(admin, name, partitions)
        return name

    return make


@pytest.fixture(scope="module")
def conversation(target: Running) -> Iterator[Conversation]:
    """Raw requests and responses on one connection."""
    host, _, port = target.bootstrap.rpartition(":")
    with contextlib.closing(Conversation((host, int(port)), 20)) as conversation:
        yield conversation
