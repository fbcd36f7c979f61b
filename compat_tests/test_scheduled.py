"""Tests that stock clients send and read scheduled records as they send and read any record, also in transactions and
with Spark, and that pending records outlive Apache Kafka on the same directory.

Apache Kafka has no scheduled records. There, the topic is an ordinary one, which ignores the headers: every expectation
holds there too, except for those about times, which are left out.
"""

import time
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from compat_tests.changing import until
from compat_tests.clients import CLIENTS, each_client
from compat_tests.conftest import MakeTopic, Running, wait_until_led
from compat_tests.dumps import METADATA
from compat_tests.java_consumer import JavaConsumer
from compat_tests.vocabulary import (
    ACKS,
    CODECS,
    Acks,
    Client,
    Codec,
    Isolation,
    Message,
    Received,
    Refused,
    closing,
    send_all,
)
from oracle.takeover import KAFKA, KPYBROKER, Home

SETTING = "kpybroker.delivery.scheduled"
COUNT = 30
EVERY = 3
"""Every third record is scheduled, so that each batch has scheduled and other records."""
ADDED = {"deliver-accepted", "deliver-offset"}


class Later:
    """A topic with scheduled records or, on Apache Kafka, an ordinary one."""

    def __init__(self, topic: str, delivers: bool) -> None:
        self.topic = topic
        self.delivers = delivers

    def check(self, found: list[Received], sent: dict[bytes, int]) -> None:
        """Check the headers of the scheduled records, which are in `sent` with the offsets that their producer was
        told."""
        for record in found:
            told = dict(record.headers).get("deliver-offset")
            assert (told is not None) == (self.delivers and record.value in sent)
            if told is not None:
                assert int(told) == sent[record.value or b""]
                assert int(dict(record.headers)["deliver-accepted"] or b"") <= time.time() * 1000


MakeLater = Callable[..., Later]


@pytest.fixture
def make_later(admin: AdminClient, unique: Callable[[], str], target_name: str, make_topic: MakeTopic) -> MakeLater:
    """make_later(**configs) -> a topic with scheduled records, created by a stock admin client"""

    def make(**configs: str) -> Later:
        settings = {SETTING: "true", **{name.replace("_", "."): value for name, value in configs.items()}}
        name = unique()
        made = admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name]
        if target_name == "kafka":
            with pytest.raises(KafkaException, match=r"Unknown topic config name: kpybroker\.delivery"):
                made.result(30)
            return Later(make_topic(**configs), delivers=False)
        made.result(30)
        return Later(name, delivers=True)

    return make


def message(number: int, delay: bytes = b"700ms") -> Message:
    headers = (("trace", b"x"), ("deliver-after", delay)) if number % EVERY == 0 else (("trace", b"x"),)
    return Message(b"%d" % number, b"key", headers, 1_700_000_000_000 + number, 0)


def read(
    client: Client, bootstrap: str, topic: str, count: int, isolation: Isolation = "read_uncommitted"
) -> list[Received]:
    """The first `count` records of the topic."""
    consumer = client.consumer(bootstrap, isolation=isolation)
    found: list[Received] = []
    with closing(consumer):
        consumer.assign({(topic, 0): "earliest"})
        until(lambda: found.extend(consumer.poll(0.2)) or len(found) >= count, f"{count} records are there")
    return found


@each_client(codec=CODECS, acks=ACKS)
def test_a_client_sends_scheduled_records_and_reads_them(
    client: Client, codec: Codec, acks: Acks, broker: Running, make_later: MakeLater
) -> None:
    later = make_later(message_timestamp_type="CreateTime")
    producer = client.producer(broker.bootstrap, codec=codec, acks=acks, linger_ms=50)
    with closing(producer):
        placed = send_all(producer, later.topic, [message(number) for number in range(COUNT)])
    told = [place.offset for place in placed]
    assert acks == "0" or told == list(range(COUNT))
    sent = {b"%d" % number: number for number in range(0, COUNT, EVERY)}
    found = read(client, broker.bootstrap, later.topic, COUNT)
    later.check(found, sent)
    assert sorted(int(record.value or b"") for record in found) == list(range(COUNT)), "each once"
    assert {record.timestamp_ms - int(record.value or b"") for record in found} == {1_700_000_000_000}
    offsets = [record.offset for record in found]
    assert offsets == sorted(offsets)
    if later.delivers:
        assert offsets[: COUNT - len(sent)] == [number for number in range(COUNT) if number % EVERY]
        assert [int(record.value or b"") for record in found[-len(sent) :]] == sorted(map(int, sent))


@each_client(isolation=("read_uncommitted", "read_committed"))
def test_a_committed_transaction_schedules_all_and_an_aborted_one_nothing(
    client: Client, isolation: Isolation, broker: Running, make_later: MakeLater, unique: Callable[[], str]
) -> None:
    later = make_later()
    producer = client.transactional(broker.bootstrap, unique())
    kept = set()
    with closing(producer):
        for turn in range(4):
            producer.begin()
            for number in range(turn * 9, turn * 9 + 9):
                producer.send(later.topic, message(number, b"300ms"))
                is_scheduled = later.delivers and number % EVERY == 0
                is_hidden = turn % 2 and (is_scheduled or isolation == "read_committed")
                kept |= set() if is_hidden else {number}
            producer.flush()
            (producer.abort if turn % 2 else producer.commit)()
    found = read(client, broker.bootstrap, later.topic, len(kept), isolation=isolation)
    assert sorted(int(record.value or b"") for record in found) == sorted(kept)
    assert len(read(client, broker.bootstrap, later.topic, len(kept), isolation=isolation)) == len(kept)


@each_client()
def test_a_time_that_cannot_be_read_is_an_error_of_the_producer(
    client: Client, broker: Running, make_later: MakeLater
) -> None:
    later = make_later()
    refused: list[object] = []
    producer = client.producer(broker.bootstrap, patience_s=30)
    with closing(producer):
        begun = time.monotonic()
        producer.send(later.topic, message(0, b"tomorrow"), refused.append)
        producer.flush(30)
        assert time.monotonic() - begun < 20, "it does not try until its patience is at an end"
        assert len(send_all(producer, later.topic, [message(1)])) == 1
    if later.delivers:
        assert isinstance(refused[0], Refused)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_reads_scheduled_records(
    protocol: str, broker: Running, make_later: MakeLater, unique: Callable[[], str]
) -> None:
    later = make_later()
    consumer = JavaConsumer(broker.bootstrap, unique(), "names", later.topic, **{"group.protocol": protocol})
    producer = CLIENTS[0].producer(broker.bootstrap, acks="idempotent")
    try:
        with closing(producer):
            send_all(producer, later.topic, [message(number, b"1s") for number in range(COUNT)])
        until(lambda: len(consumer.read) >= COUNT, "it has read all records")
    finally:
        consumer.close()
    assert sorted(map(int, consumer.read)) == list(range(COUNT))


def test_spark_writes_and_reads_scheduled_records(spark: SparkSession, broker: Running, make_later: MakeLater) -> None:
    later = make_later()
    options = {"kafka.bootstrap.servers": broker.bootstrap, "includeHeaders": "true"}
    header = "array(named_struct('key', 'deliver-after', 'value', cast('1s' as binary)))"
    frame = spark.range(COUNT).selectExpr(
        f"'{later.topic}' as topic", "cast(cast(id as string) as binary) as value", f"{header} as headers"
    )
    frame.write.format("kafka").options(**options).save()
    reading = spark.read.format("kafka").options(**options, subscribe=later.topic)

    def values() -> list[int]:
        return sorted(int(bytes(row.value)) for row in reading.load().collect())

    until(lambda: values() == list(range(COUNT)), "all records are delivered")


def test_the_table_of_a_compacted_topic_changes_at_the_scheduled_time(broker: Running, make_later: MakeLater) -> None:
    later = make_later(cleanup_policy="compact")
    producer = CLIENTS[0].producer(broker.bootstrap)
    with closing(producer):
        send_all(producer, later.topic, [Message(b"old", b"price", (), None, 0)])
        send_all(producer, later.topic, [Message(b"new", b"price", (("deliver-after", b"1s"),), None, 0)])
    found = read(CLIENTS[0], broker.bootstrap, later.topic, 2)
    assert [(record.key, record.value) for record in found] == [(b"price", b"old"), (b"price", b"new")]


def test_pending_records_outlive_apache_kafka() -> None:
    """Apache Kafka sees them in a topic of its own, and kpybroker delivers them when it is back: once, and after what
    is overdue, in the order of time."""
    with Home() as home:
        home.start(KPYBROKER)
        admin = AdminClient({"bootstrap.servers": home.bootstrap, "log_level": 2})
        topic = NewTopic("later", 1, 1, config={SETTING: "true", "retention.ms": "-1"})
        admin.create_topics([topic])["later"].result(30)
        producer = CLIENTS[0].transactional(home.bootstrap, "tx")
        with closing(producer):
            for turn, after in enumerate((b"3s", b"1s", b"1h", b"2s")):
                producer.begin()
                producer.send("later", message(EVERY * turn, after))
                (producer.abort if turn == 1 else producer.commit)()
        home.end()
        home.start(KAFKA)
        admin = AdminClient({"bootstrap.servers": home.bootstrap, "log_level": 2})
        wait_until_led(admin, "__scheduled.later", 1)
        assert {"later", "__scheduled.later"} <= set(admin.list_topics().topics)
        producer = CLIENTS[0].producer(home.bootstrap)
        with closing(producer):
            send_all(producer, "later", [message(1), message(EVERY * 5, b"1h")])
        # so many changes that Apache Kafka writes a snapshot of the metadata, without settings that it does not know
        metadata = home.directory / "data" / METADATA
        before = set(metadata.glob("*.checkpoint"))
        for done in admin.create_topics([NewTopic(f"other-{number}", 1, 1) for number in range(200)]).values():
            done.result(60)
        until(lambda: set(metadata.glob("*.checkpoint")) - before, "Apache Kafka has written a snapshot")
        entries = CLIENTS[0].consumer(home.bootstrap, isolation="read_committed")
        with closing(entries):
            entries.assign({("__scheduled.later", 0): "earliest"})
            found: list[Received] = []
            until(lambda: found.extend(entries.poll(0.2)) or len(found) >= 3, "Apache Kafka shows pending records")
        home.end()
        home.start(KPYBROKER)
        records = read(CLIENTS[0], home.bootstrap, "later", 4, isolation="read_committed")
        assert [int(record.value or b"") for record in records] == [1, 15, 9, 0]
        producer = CLIENTS[0].producer(home.bootstrap)
        with closing(producer):
            send_all(producer, "later", [message(0, b"1h")])
        home.end()
        home.start(KPYBROKER)
        consumer = CLIENTS[0].consumer(home.bootstrap, isolation="read_committed")
        with closing(consumer):
            consumer.assign({("later", 0): "earliest"})
            found = [record for _ in range(10) for record in consumer.poll(0.2)]
        assert [int(record.value or b"") for record in found] == [1, 15, 9, 0], "the new record is scheduled"
        home.end()
