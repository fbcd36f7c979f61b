"""Tests of Connect standalone, which copies the lines of a file through a topic into another file, and of MirrorMaker
2, which copies topics."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from compat_tests.client_confluent import Confluent
from compat_tests.conftest import MakeTopic, Running, start_target
from compat_tests.pipelines import CONNECT, MIRROR_MAKER, Program, properties
from compat_tests.test_consume import poll_until
from compat_tests.vocabulary import Message, closing, send_all
from oracle.kafka import Kafka
from oracle.target import steady_port

STRING = "org.apache.kafka.connect.storage.StringConverter"
COUNT = 200


def worker(broker: Running, folder: Path, topic: str) -> list[str]:
    """The three files with which Connect standalone is started."""
    own = {
        "bootstrap.servers": broker.bootstrap,
        "key.converter": STRING,
        "value.converter": STRING,
        "offset.storage.file.filename": folder / "offsets",
        "offset.flush.interval.ms": 500,
        "consumer.session.timeout.ms": 6000,  # a killed member stays in its group for this long
        "consumer.heartbeat.interval.ms": 1000,
        "listeners": f"http://127.0.0.1:{steady_port()}",
        "plugin.discovery": "service_load",
    }
    file = "org.apache.kafka.connect.file.FileStream"
    source = {"name": f"{topic}-source", "connector.class": f"{file}SourceConnector", "file": folder / "in"}
    sink = {"name": f"{topic}-sink", "connector.class": f"{file}SinkConnector", "file": folder / "out"}
    return [
        properties(folder / "worker.properties", own),
        properties(folder / "source.properties", {**source, "topic": topic, "tasks.max": 1}),
        properties(folder / "sink.properties", {**sink, "topics": topic, "tasks.max": 1}),
    ]


def test_connect_copies_a_file_through_a_topic(broker: Running, make_topic: MakeTopic, tmp_path: Path) -> None:
    """After a stop, Connect continues where it stopped. After a kill, it may repeat lines, but loses none."""
    topic, out = make_topic(), tmp_path / "out"
    written: list[str] = []

    def write(count: int) -> None:
        lines = [f"line {number}" for number in range(len(written), len(written) + count)]
        written.extend(lines)
        with (tmp_path / "in").open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def arrived() -> list[str]:
        return out.read_text().splitlines() if out.exists() else []

    write(COUNT)
    with Program(CONNECT, *worker(broker, tmp_path, topic), log=tmp_path / "log") as connect:
        connect.until(lambda: len(arrived()) == COUNT, "all lines are copied")
        assert arrived() == written
        connect.stop()
        write(COUNT)
        connect.start()
        connect.until(lambda: len(arrived()) >= 2 * COUNT, "the lines of the second run are copied")
        assert arrived() == written
        connect.kill9()
        write(COUNT)
        connect.start()
        connect.until(lambda: set(arrived()) == set(written), "no line is lost")


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Running]:
    broker = start_target("kafka")
    yield broker
    broker.kill9()
    broker.remove()


def fill(broker: Running, topic: str, count: int) -> None:
    producer = Confluent().producer(broker.bootstrap)
    with closing(producer):
        send_all(producer, topic, [Message(f"{topic} {n}".encode(), b"%d" % n, partition=n % 3) for n in range(count)])


def ends_of(broker: Running, topic: str) -> dict[int, int]:
    told = broker.tool("kafka-get-offsets", "--topic", topic)
    return {int(line.split(":")[1]): int(line.split(":")[2]) for line in told.out.split()} if told.code == 0 else {}


def values(broker: Running, topic: str, count: int) -> list[tuple[int, bytes | None, bytes | None]]:
    consumer = Confluent().consumer(broker.bootstrap)
    with closing(consumer):
        consumer.assign({(topic, partition): "earliest" for partition in range(3)})
        read = poll_until(consumer, lambda read: len(read) >= count)
    found = [(one.partition, one.key, one.value) for one in read]
    return sorted(found, key=lambda one: (one[0], int(one[1] or b"")))


def mirror(folder: Path, one: Running, two: Running, topic: str, back: str, group: str) -> str:
    often = ("refresh.topics", "refresh.groups", "sync.topic.configs", "emit.checkpoints", "sync.group.offsets")
    settings: dict[str, object] = {
        "clusters": "one,two",
        "one.bootstrap.servers": one.bootstrap,
        "two.bootstrap.servers": two.bootstrap,
        "one->two.enabled": "true",
        "two->one.enabled": "true",
        "one->two.topics": topic,
        "two->one.topics": back,
        "groups": group,
        "sync.group.offsets.enabled": "true",
        "tasks.max": 1,
        "replication.factor": 1,
        "dedicated.mode.enable.internal.rest": "false",
        "offset.lag.max": 0,
        "sync.topic.acls.enabled": "false",  # there are none in this test
        "plugin.discovery": "service_load",
    }
    settings |= {f"{what}.interval.seconds": 1 for what in often}
    for what in ("checkpoints.topic", "heartbeats.topic", "offset-syncs.topic"):
        settings[f"{what}.replication.factor"] = 1
    for cluster in ("one", "two"):  # the workers' own settings; copied offsets are reported with each flush
        settings[f"{cluster}.offset.flush.interval.ms"] = 500
        settings[f"{cluster}.plugin.discovery"] = "service_load"
    for what in ("offset", "status", "config"):
        settings[f"{what}.storage.replication.factor"] = 1
    return properties(folder / "mirror.properties", settings)


def test_mirror_maker_copies_topics_and_offsets_there_and_back(
    broker: Running, second: Kafka, make_topic: MakeTopic, unique: Callable[[], str], tmp_path: Path
) -> None:
    """The second cluster is Apache Kafka: its copies have the name of their source cluster as a prefix."""
    topic, group, back = make_topic(3, retention_ms=77_000_000), unique(), unique()
    fill(broker, topic, 300)
    second.tool("kafka-topics", "--create", "--topic", back, "--partitions", "3").ok()
    fill(second, back, 150)
    consumer = Confluent().consumer(broker.bootstrap, group=group)
    with closing(consumer):
        consumer.subscribe([topic])
        while sum(consumer.position((topic, at)) for at in range(3) if (topic, at) in consumer.assignment()) < 300:
            consumer.poll(1)
        consumer.commit()
    there, here = f"one.{topic}", f"two.{back}"
    settings = mirror(tmp_path, broker, second, topic, back, group)
    with Program(MIRROR_MAKER, settings, log=tmp_path / "log", memory="512m") as maker:
        maker.until(lambda: sum(ends_of(second, there).values()) == 300, "the topic is mirrored")
        maker.until(lambda: sum(ends_of(broker, here).values()) == 150, "the topic of the other cluster is mirrored")
        assert values(second, there, 300) == values(broker, topic, 300)
        assert values(broker, here, 150) == values(second, back, 150)
        admin = AdminClient({"bootstrap.servers": second.bootstrap})
        maker.until(lambda: group in {one.group_id for one in admin.list_consumer_groups().result().valid}, "the group")
        copied = Confluent().consumer(second.bootstrap, group=group)
        with closing(copied):
            maker.until(
                lambda: [copied.committed((there, at)) for at in range(3)] == [100, 100, 100],
                "its offsets are mirrored",
            )
        fill(broker, topic, 300)
        maker.until(lambda: sum(ends_of(second, there).values()) == 600, "later records are mirrored")
        described = second.tool("kafka-configs", "--describe", "--entity-type", "topics", "--entity-name", there).ok()
        assert "retention.ms=77000000" in described
