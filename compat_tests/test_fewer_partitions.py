"""Tests with stock clients that a topic gets fewer partitions: nothing acknowledged is lost, producers that do not know
it yet are served, and groups go on where they were.

Apache Kafka refuses the setting. There, `Resized` is the topic with all its partitions, and the same records are read.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from pyspark.sql import SparkSession

from compat_tests.changing import until
from compat_tests.clients import CLIENTS, each_client
from compat_tests.conftest import MakeTopic, Running, wait_until_led
from compat_tests.java_consumer import JavaConsumer
from compat_tests.pipelines import Program
from compat_tests.vocabulary import Client, Consumer, Message, Place, closing, send_all
from oracle.takeover import KAFKA, KPYBROKER, Home

TOTAL, IN_USE = 4, 2
BEFORE, STALE, AFTER = 40, 20, 20
"""How many records are sent before the change, by a producer that does not know it, and by a new producer."""


class Resized(NamedTuple):
    """A topic, and the names under which its records are read."""

    topic: str
    names: tuple[str, ...]

    def place(self, index: int) -> Place:
        """The name of a partition."""
        return (self.topic, index) if index < IN_USE or len(self.names) == 1 else (self.names[1], TOTAL - 1 - index)


Resize = Callable[[str], Resized]


def set_in_use(admin: AdminClient, topic: str, value: str = str(IN_USE)) -> None:
    change = ConfigEntry("kpybroker.partitions", value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[change])
    next(iter(admin.incremental_alter_configs([resource]).values())).result(30)


@pytest.fixture
def resize(admin: AdminClient, target_name: str) -> Resize:
    """resize(topic) -> the topic, which has only IN_USE partitions from now on, by a stock admin client"""

    def change(topic: str) -> Resized:
        if target_name == "kafka":
            with pytest.raises(KafkaException, match=r"Unknown topic config name: kpybroker\.partitions"):
                set_in_use(admin, topic)
            return Resized(topic, (topic,))
        set_in_use(admin, topic)
        return Resized(topic, (topic, f"{topic}.retired"))

    return change


def messages(first: int, count: int, partitions: int = TOTAL) -> list[Message]:
    return [Message(b"%d" % number, partition=number % partitions) for number in range(first, first + count)]


def read_all(consumer: Consumer, count: int) -> list[tuple[str, int, int, bytes | None]]:
    """Topic, partition, offset and value of the next records, in their order in each partition."""
    found: list[tuple[str, int, int, bytes | None]] = []

    def more() -> bool:
        found.extend((one.topic, one.partition, one.offset, one.value) for one in consumer.poll(0.2))
        return len(found) >= count

    until(more, f"{count} records are read")
    return found


@each_client()
def test_nothing_is_lost_and_groups_go_on(
    client: Client, broker: Running, make_topic: MakeTopic, resize: Resize, unique: Callable[[], str]
) -> None:
    topic, group = make_topic(partitions=TOTAL), unique()
    stale = client.producer(broker.bootstrap)
    with closing(stale):
        placed = send_all(stale, topic, messages(0, BEFORE))
        consumer = client.consumer(broker.bootstrap, group=group)
        with closing(consumer):
            consumer.subscribe([topic])
            read_all(consumer, BEFORE)
            consumer.commit()
        resized = resize(topic)
        placed += send_all(stale, topic, messages(BEFORE, STALE))
    fresh = client.producer(broker.bootstrap)
    with closing(fresh):
        new = [Message(b"%d" % number) for number in range(BEFORE + STALE, BEFORE + STALE + AFTER)]
        placed += (by_fresh := send_all(fresh, topic, new))
    assert len(resized.names) == 1 or {one.partition for one in by_fresh} <= set(range(IN_USE))
    expected = {(*resized.place(one.partition), one.offset, b"%d" % at) for at, one in enumerate(placed)}
    consumer = client.consumer(broker.bootstrap, group=group)
    with closing(consumer):
        consumer.subscribe(list(resized.names))
        found = read_all(consumer, STALE + AFTER)
        consumer.commit()
        for index in range(TOTAL):
            assert consumer.committed(resized.place(index)) == max(
                offset + 1 for name, at, offset, _ in expected if (name, at) == resized.place(index)
            )
    assert sorted(found) == sorted(each for each in expected if int(each[3]) >= BEFORE)
    consumer = client.consumer(broker.bootstrap)
    with closing(consumer):
        consumer.assign({resized.place(index): "earliest" for index in range(TOTAL)})
        assert sorted(read_all(consumer, len(expected))) == sorted(expected)


def test_kafka_streams_reads_what_is_left_and_what_is_retired(
    broker: Running, make_topic: MakeTopic, resize: Resize, unique: Callable[[], str], tmp_path: Path
) -> None:
    topic, counts = make_topic(partitions=TOTAL), make_topic(IN_USE)
    producer = CLIENTS[0].producer(broker.bootstrap)
    with closing(producer):
        send_all(producer, topic, messages(0, BEFORE))
    resized = resize(topic)
    producer = CLIENTS[0].producer(broker.bootstrap)
    with closing(producer):
        send_all(producer, topic, messages(BEFORE, AFTER, IN_USE))
    found: Counter[bytes | None] = Counter()
    consumer = CLIENTS[0].consumer(broker.bootstrap, isolation="read_committed")
    with closing(consumer):
        consumer.assign({(counts, index): "earliest" for index in range(IN_USE)})

        def counted() -> bool:
            found.update(one.key for one in consumer.poll(0.2))
            return found.total() >= wanted

        wanted = 0
        for name in resized.names:
            wanted += sum(resized.place(at % TOTAL)[0] == name for at in range(BEFORE)) + AFTER * (name == topic)
            arguments = [unique(), "one", str(tmp_path / name), "exactly_once_v2", "words", name, counts]
            with Program("Counting", broker.bootstrap, *arguments, log=tmp_path / f"{name}.log") as program:
                program.until(counted, f"{wanted} words of {name} are counted; {found}")
                program.stop()
    assert found == Counter(b"%d" % number for number in range(BEFORE + AFTER))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_java_consumer_goes_on_with_fewer_partitions(
    protocol: str, broker: Running, make_topic: MakeTopic, resize: Resize, unique: Callable[[], str]
) -> None:
    topic, group = make_topic(partitions=TOTAL), unique()
    producer = CLIENTS[0].producer(broker.bootstrap)
    settings = {"group.protocol": protocol, "metadata.max.age.ms": "500"}
    with closing(producer):
        send_all(producer, topic, messages(0, BEFORE))
        first = JavaConsumer(broker.bootstrap, group, "names", topic, **settings)
        try:
            until(lambda: len(first.read) >= BEFORE, "it has read everything")
            resized = resize(topic)
            owned = {f"{name}-{index}" for name, index in map(resized.place, range(TOTAL)) if name == topic}
            until(lambda: first.owned == owned, "it owns the partitions that are in use")
        finally:
            first.close()
        send_all(producer, topic, messages(BEFORE, STALE))
        second = JavaConsumer(broker.bootstrap, group, "names", ",".join(resized.names), **settings)
        try:
            until(lambda: len(second.read) >= STALE, "it has read on")
            assert second.owned == {"{}-{}".format(*resized.place(index)) for index in range(TOTAL)}
        finally:
            second.close()
    assert sorted(map(int, first.read + second.read)) == list(range(BEFORE + STALE))


def test_kafkas_tools_see_fewer_partitions(
    broker: Running, make_topic: MakeTopic, target_name: str, unique: Callable[[], str]
) -> None:
    topic = make_topic(partitions=TOTAL)
    producer = CLIENTS[0].producer(broker.bootstrap)
    with closing(producer):
        send_all(producer, topic, messages(0, BEFORE))
    setting = ("kafka-configs", "--alter", "--topic", topic, "--add-config", f"kpybroker.partitions={IN_USE}")
    changed = broker.tool(*setting)
    if target_name == "kafka":
        assert "Unknown topic config name: kpybroker.partitions" in changed.out + changed.err
        return
    changed.ok()
    assert f"PartitionCount: {IN_USE}" in broker.tool("kafka-topics", "--describe", "--topic", topic).ok()
    offsets = broker.tool("kafka-get-offsets", "--topic", f"{topic}.*").ok().split()
    assert offsets == [f"{name}:{index}:10" for name in (topic, f"{topic}.retired") for index in (0, 1)]
    grown = broker.tool("kafka-topics", "--alter", "--topic", topic, "--partitions", str(TOTAL))
    grown.ok()
    assert f"PartitionCount: {TOTAL}" in broker.tool("kafka-topics", "--describe", "--topic", topic).ok()


def test_spark_reads_retired_partitions(
    spark: SparkSession, broker: Running, make_topic: MakeTopic, resize: Resize
) -> None:
    topic = make_topic(partitions=TOTAL)
    producer = CLIENTS[0].producer(broker.bootstrap)
    with closing(producer):
        send_all(producer, topic, messages(0, BEFORE))
    resized = resize(topic)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": ",".join(resized.names)}
    rows = spark.read.format("kafka").options(**options, startingOffsets="earliest").load().collect()
    assert {(row.topic, row.partition, bytes(row.value)) for row in rows} == {
        (*resized.place(number % TOTAL), b"%d" % number) for number in range(BEFORE)
    }
    assert len(rows) == BEFORE


def test_the_command_about_fewer_partitions(broker: Running, make_topic: MakeTopic, target_name: str) -> None:
    topic = make_topic(partitions=TOTAL)

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "kpybroker", "topics", *arguments, "--bootstrap", broker.bootstrap]
        return subprocess.run(program, capture_output=True, text=True, check=False)

    changed = command("alter", topic, "--partitions", str(IN_USE), "--grace", "30s")
    if target_name == "kafka":
        assert changed.returncode == 1
        assert "Unknown topic config name: kpybroker.partitions" in changed.stderr
        return
    assert (changed.returncode, changed.stdout) == (0, f"altered {topic}\n")
    described = command("describe", topic).stdout
    assert "kpybroker.partitions=2" in described
    assert "kpybroker.partitions.grace.ms=30000" in described
    assert command("alter", topic, "--partitions", str(TOTAL)).returncode == 0
    assert "kpybroker.partitions" not in command("describe", topic).stdout


def committed(admin: AdminClient, group: str) -> dict[Place, int]:
    """All committed offsets of a group, when its coordinator has loaded them."""

    def asked() -> list[TopicPartition] | None:
        try:
            found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
        except KafkaException as refused:
            if refused.args[0].code() != KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
                raise
            return None
        return list(found.topic_partitions or ())

    told = until(lambda: [rows] if (rows := asked()) is not None else None, "the coordinator has loaded the group")
    return {(one.topic, one.partition): one.offset for one in told[0]}


def places(topic: str, *counts: tuple[str, int]) -> Iterator[Place]:
    for name, count in counts or ((topic, TOTAL),):
        for index in range(count):
            yield name, index


def test_apache_kafka_sees_all_partitions_and_kpybroker_the_retired_ones_again() -> None:
    """Also after Apache Kafka has written snapshots of the metadata, and records to the retired partitions."""
    with Home() as home:
        home.start(KPYBROKER)
        admin = AdminClient({"bootstrap.servers": home.bootstrap, "log_level": 2})
        admin.create_topics([NewTopic("orders", TOTAL, 1, config={"retention.ms": "-1"})])["orders"].result(30)
        sent = 0
        for kind in (KPYBROKER, KAFKA, KAFKA, KPYBROKER):
            if sent:
                home.start(kind)
            admin = AdminClient({"bootstrap.servers": home.bootstrap, "log_level": 2})
            wait_until_led(admin, "orders", IN_USE if sent and kind == KPYBROKER else TOTAL)
            producer = CLIENTS[0].producer(home.bootstrap)
            with closing(producer):
                in_use = IN_USE if sent and kind == KPYBROKER else TOTAL
                send_all(producer, "orders", messages(sent, BEFORE, in_use))
                sent += BEFORE
            if sent == BEFORE:
                group = CLIENTS[0].consumer(home.bootstrap, group="g")
                with closing(group):
                    group.subscribe(["orders"])
                    read_all(group, BEFORE)
                    group.commit()
                set_in_use(admin, "orders")
            retired = [("orders", IN_USE), ("orders.retired", TOTAL - IN_USE)] if kind == KPYBROKER else []
            names = list(places("orders", *retired))
            assert committed(admin, "g") == dict.fromkeys(names, BEFORE // TOTAL)
            consumer = CLIENTS[0].consumer(home.bootstrap)
            with closing(consumer):
                consumer.assign(dict.fromkeys(names, "earliest"))
                found = read_all(consumer, sent)
            assert sorted(int(value or b"") for *_, value in found) == list(range(sent))
            assert len(admin.list_topics().topics["orders"].partitions) == (IN_USE if kind == KPYBROKER else TOTAL)
            if kind == KAFKA:
                # so many changes that Apache Kafka writes a snapshot of the metadata
                made = [NewTopic(f"other-{sent}-{number}", 1, 1) for number in range(200)]
                for done in admin.create_topics(made).values():
                    done.result(60)
            home.end()
