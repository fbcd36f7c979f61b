"""Tests that stock clients read a view as they read any topic: every client, codec and kind of group, from offsets and
times, with transactions, and after compaction.

Apache Kafka has no views. There, `Shown` is the source itself, and the test leaves out what does not match, as a
consumer without a view does, so that the same expectations hold.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from compat_tests.changing import until
from compat_tests.clients import CLIENTS, FULL, each_client
from compat_tests.conftest import EXIT_CODES, MakeTopic, Running, start_target, wait_until_led
from compat_tests.java_consumer import JavaConsumer
from compat_tests.test_compaction import SETTINGS as COMPACTED
from compat_tests.vocabulary import (
    CODECS,
    Client,
    Codec,
    Consumer,
    Isolation,
    Message,
    Received,
    Refused,
    closing,
    send_all,
)
from oracle.takeover import KAFKA, KPYBROKER, Home

COUNT = 600
EVERY = 7
"""Every seventh record matches, so that most batches have matching records and others."""
FIRST_MS = 1_700_000_000_000
STEP_MS = 10
EU, US = (("region", b"eu"),), (("region", b"us"),)
WHERE = 'header.region == "eu"'


class Shown(NamedTuple):
    """A view or, on Apache Kafka, its source."""

    topic: str
    source: str

    def matching(self, found: list[Received]) -> list[Received]:
        """The records of the view. A view itself has no others."""
        kept = [record for record in found if record.key == b"eu" or dict(record.headers).get("region") == b"eu"]
        assert self.topic == self.source or kept == found
        return kept


MakeView = Callable[..., Shown]


@pytest.fixture
def make_view(admin: AdminClient, target_name: str) -> MakeView:
    """make_view(source) -> the view of its records from the EU, created by a stock admin client"""

    def make(source: str, where: str = WHERE, admin: AdminClient = admin) -> Shown:
        name = f"{source}.eu"
        view = NewTopic(name, -1, -1, config={"kpybroker.view.of": source, "kpybroker.view.where": where})
        made = admin.create_topics([view])[name]
        if target_name == "kafka":
            with pytest.raises(KafkaException, match=r"Unknown topic config name: kpybroker\.view"):
                made.result(30)
            return Shown(source, source)
        made.result(30)
        return Shown(name, source)

    return make


def message(number: int) -> Message:
    headers = EU if number % EVERY == 0 else US
    return Message(b"%d" % number, headers=headers, timestamp_ms=FIRST_MS + number * STEP_MS, partition=0)


@pytest.fixture(scope="module")
def filled(target: Running) -> Iterator[Callable[[MakeTopic, MakeView, Codec], Shown]]:
    """filled(make_topic, make_view, codec) -> a view of a topic with COUNT records"""
    views: dict[Codec, Shown] = {}

    def fill(make_topic: MakeTopic, make_view: MakeView, codec: Codec) -> Shown:
        if codec not in views:
            source = make_topic()
            producer = CLIENTS[0].producer(target.bootstrap, codec=codec, linger_ms=50, batch_bytes=4000)
            with closing(producer):
                send_all(producer, source, [message(number) for number in range(COUNT)])
            views[codec] = make_view(source)
        return views[codec]

    yield fill
    views.clear()


def read(consumer: Consumer, shown: Shown, last: int, timeout_s: float = 30) -> list[Received]:
    """Poll until the record at offset `last` is read, or until the time has passed. Returns the matching records."""
    deadline = time.monotonic() + timeout_s
    found: list[Received] = []
    while not (found and found[-1].offset >= last) and time.monotonic() < deadline:
        found += shown.matching(consumer.poll(0.2))
    return found


LAST = (COUNT - 1) // EVERY * EVERY


@each_client(codec=CODECS, access=("assign", "group"))
def test_a_client_reads_the_matching_records(
    client: Client,
    codec: Codec,
    access: str,
    broker: Running,
    make_topic: MakeTopic,
    make_view: MakeView,
    filled: Callable[..., Shown],
    unique: Callable[[], str],
) -> None:
    shown = filled(make_topic, make_view, codec)
    group = unique() if access == "group" else None
    consumer = client.consumer(broker.bootstrap, group=group)
    with closing(consumer):
        consumer.assign({(shown.topic, 0): "earliest"}) if group is None else consumer.subscribe([shown.topic])
        found = read(consumer, shown, LAST)
        until(lambda: consumer.poll(0.1) == [] and at_end(client, consumer, shown), "the position is the end")
        if group is not None:
            consumer.commit()
            assert consumer.committed((shown.topic, 0)) == consumer.position((shown.topic, 0))
    assert [(record.offset, record.value, record.timestamp_ms) for record in found] == [
        (number, b"%d" % number, FIRST_MS + number * STEP_MS) for number in range(0, COUNT, EVERY)
    ]


def at_end(client: Client, consumer: Consumer, shown: Shown) -> bool:
    """Whether the position is at the end. librdkafka's is after the last record that it has delivered."""
    return consumer.position((shown.topic, 0)) == (
        LAST + 1 if client.name in FULL and shown.topic != shown.source else COUNT
    )


@each_client()
def test_a_client_begins_at_an_offset_or_a_time(
    client: Client, broker: Running, make_topic: MakeTopic, make_view: MakeView, filled: Callable[..., Shown]
) -> None:
    """A time is looked up in the source: the record at that offset need not match."""
    shown = filled(make_topic, make_view, "zstd")
    place = shown.topic, 0
    consumer = client.consumer(broker.bootstrap)
    with closing(consumer):
        consumer.assign({place: 250})
        assert read(consumer, shown, LAST)[0].offset == 252
        at = consumer.offset_at(place, FIRST_MS + 400 * STEP_MS)
        assert at == 400
        consumer.seek(place, at)
        assert read(consumer, shown, LAST)[0].offset == 406


@each_client(isolation=("read_uncommitted", "read_committed"))
def test_aborted_transactions_are_hidden(
    client: Client, isolation: Isolation, broker: Running, make_topic: MakeTopic, make_view: MakeView
) -> None:
    shown = make_view(make_topic(), where='key == "eu"')
    producer = client.transactional(broker.bootstrap, shown.source)
    kept = []
    with closing(producer):
        for turn in range(6):
            producer.begin()
            for number in range(turn * 20, turn * 20 + 20):
                key = b"eu" if number % EVERY == 0 else b"us"
                producer.send(shown.source, Message(b"%d" % number, key, partition=0))
                if number % EVERY == 0 and (turn % 2 == 0 or isolation == "read_uncommitted"):
                    kept.append(b"%d" % number)
            producer.flush()
            (producer.commit if turn % 2 == 0 else producer.abort)()
    consumer = client.consumer(broker.bootstrap, isolation=isolation)
    with closing(consumer):
        consumer.assign({(shown.topic, 0): "earliest"})
        found: list[bytes | None] = []
        until(lambda: found.extend(r.value for r in shown.matching(consumer.poll(0.2))) or len(found) >= len(kept), "")
        assert [shown.matching(consumer.poll(0.1)) for _ in range(3)] == [[]] * 3
    assert found == kept


@each_client()
def test_a_producer_to_a_view_is_refused_at_once(
    client: Client, broker: Running, make_topic: MakeTopic, make_view: MakeView, target_name: str
) -> None:
    shown = make_view(make_topic())
    refused: list[object] = []
    producer = client.producer(broker.bootstrap, patience_s=60)
    with closing(producer):
        begun = time.monotonic()
        producer.send(shown.topic, message(0), refused.append)
        producer.flush(30)
    if target_name == "kafka":
        return
    assert isinstance(refused[0], Refused)
    assert "topic" in str(refused[0]).lower()
    assert time.monotonic() - begun < 20, "it does not try until its patience is at an end"


@pytest.mark.parametrize(("protocol", "how"), [("classic", "names"), ("consumer", "names"), ("consumer", "pattern")])
def test_the_java_consumer_subscribes_to_a_view(
    protocol: str,
    how: str,
    broker: Running,
    make_topic: MakeTopic,
    make_view: MakeView,
    filled: Callable[..., Shown],
    unique: Callable[[], str],
) -> None:
    shown = filled(make_topic, make_view, "lz4")
    what = shown.topic if how == "names" else shown.topic.replace(".", "[.]")
    consumer = JavaConsumer(broker.bootstrap, unique(), how, what, **{"group.protocol": protocol})
    wanted = {str(number) for number in range(0, COUNT, EVERY)}
    try:
        until(lambda: wanted <= set(consumer.read), "it has read all matching records")
        assert consumer.owned == {f"{shown.topic}-0"}
    finally:
        consumer.close()
    if shown.topic != shown.source:
        assert set(consumer.read) == wanted


def test_kafkas_tools_are_told_what_a_view_is(
    broker: Running, make_topic: MakeTopic, make_view: MakeView, target_name: str
) -> None:
    shown = make_view(make_topic())
    if target_name == "kafka":
        return
    told = f"{shown.topic} is a view of {shown.source}, which can only be read; use {shown.source} instead."
    for tool, *arguments in (
        ("kafka-console-producer", "--topic", shown.topic),
        ("kafka-topics", "--alter", "--topic", shown.topic, "--partitions", "5"),
    ):
        ran = broker.tool(tool, *arguments, stdin="a\n")
        assert told in ran.out + ran.err
    described = broker.tool("kafka-topics", "--describe", "--topic", shown.topic).ok()
    assert f"kpybroker.view.of={shown.source}" in described


def test_spark_reads_a_view(
    spark: SparkSession, broker: Running, make_topic: MakeTopic, make_view: MakeView, filled: Callable[..., Shown]
) -> None:
    shown = filled(make_topic, make_view, "gzip")
    settings = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": shown.topic, "includeHeaders": "true"}
    frame = spark.read.format("kafka").options(**settings, startingOffsets="earliest").load()
    rows = frame.selectExpr("offset", "headers").collect()
    found = [row.offset for row in rows if bytes(row.headers[0]["value"]) == b"eu"]
    assert shown.topic == shown.source or len(found) == len(rows)
    assert sorted(found) == list(range(0, COUNT, EVERY))
    late = frame.sparkSession.read.format("kafka").options(**settings, startingTimestamp=FIRST_MS + 400 * STEP_MS)
    assert min(row.offset for row in late.load().collect() if bytes(row.headers[0]["value"]) == b"eu") == 406


def test_a_view_of_a_compacted_topic(target_name: str, unique: Callable[[], str], make_view: MakeView) -> None:
    broker = start_target(target_name, {"log.cleaner.backoff.ms": "100"})
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
        source = unique()
        admin.create_topics([NewTopic(source, 1, 1, config=COMPACTED)])[source].result(30)
        shown = make_view(source, admin=admin)
        now_ms = int(time.time() * 1000)
        producer = CLIENTS[0].producer(broker.bootstrap, linger_ms=20)
        with closing(producer):
            for turn in range(5):
                batch = [
                    Message(b"%d" % turn, b"%d" % key, EU if key % EVERY == 0 else US, now_ms + turn * 1000, 0)
                    for key in range(50)
                ]
                send_all(producer, source, batch)
            for turn in (5, 6):  # the last segments are not cleaned
                send_all(producer, source, [Message(b"", b"last", US, now_ms + turn * 1000, 0)])

        def table() -> list[tuple[bytes | None, bytes | None]]:
            consumer = CLIENTS[0].consumer(broker.bootstrap)
            with closing(consumer):
                consumer.assign({(shown.topic, 0): "earliest"})
                return [(record.key, record.value) for record in read(consumer, shown, 249)]

        until(lambda: table() == [(b"%d" % key, b"4") for key in range(0, 50, EVERY)], "it is compacted")
        assert broker.stop() == EXIT_CODES[target_name]
    finally:
        broker.remove()


def test_the_commands_about_views(broker: Running, make_topic: MakeTopic, target_name: str) -> None:
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "kpybroker", *arguments, "--bootstrap", broker.bootstrap]
        return subprocess.run(program, capture_output=True, text=True, check=False)

    source = make_topic()
    made = command("topics", "create", f"{source}.eu", "--view-of", source, "--where", WHERE)
    if target_name == "kafka":
        assert made.returncode == 1
        assert "Unknown topic config name: kpybroker.view" in made.stderr
        return
    assert (made.returncode, made.stdout) == (0, f"created {source}.eu\n")
    assert f"kpybroker.view.where={WHERE}" in command("topics", "describe", f"{source}.eu").stdout
    half = command("topics", "create", "v", "--view-of", source)
    assert (half.returncode, half.stderr) == (
        2,
        "kpybroker: a view needs both --view-of SOURCE and --where EXPRESSION\n",
    )
    assert command("topics", "delete", f"{source}.eu").returncode == 0


def offsets(bootstrap: str, topic: str, last: int) -> list[int]:
    """The offsets of a topic's records, up to the one at `last`."""
    consumer = CLIENTS[0].consumer(bootstrap)
    with closing(consumer):
        consumer.assign({(topic, 0): "earliest"})
        deadline = time.monotonic() + 30
        found: list[int] = []
        while not (found and found[-1] == last) and time.monotonic() < deadline:
            found += [record.offset for record in consumer.poll(0.2)]
    return found


def test_apache_kafka_serves_the_source_and_keeps_the_view_for_kpybroker() -> None:
    """Also in the snapshots that it writes of the metadata, and if it leads the next changes of the source."""
    with Home() as home:
        home.start(KPYBROKER)
        admin = AdminClient({"bootstrap.servers": home.bootstrap, "log_level": 2})
        admin.create_topics([NewTopic("orders", 1, 1, config={"retention.ms": "-1"})])["orders"].result(30)
        settings = {"kpybroker.view.of": "orders", "kpybroker.view.where": WHERE}
        admin.create_topics([NewTopic("orders.eu", -1, -1, config=settings)])["orders.eu"].result(30)
        uuid = admin.describe_topics(TopicCollection(["orders.eu"]))["orders.eu"].result(30).topic_id
        for kind, first in ((KPYBROKER, 0), (KAFKA, 100), (KAFKA, 200), (KPYBROKER, 300)):
            if first:
                home.start(kind)
            admin = AdminClient({"bootstrap.servers": home.bootstrap, "log_level": 2})
            wait_until_led(admin, "orders", 1)
            producer = CLIENTS[0].producer(home.bootstrap, codec="lz4")
            with closing(producer):
                send_all(producer, "orders", [message(number) for number in range(first, first + 100)])
            if kind == KAFKA:
                assert "orders.eu" not in admin.list_topics().topics
                assert offsets(home.bootstrap, "orders", first + 99) == list(range(first + 100))
                # so many changes that Apache Kafka writes a snapshot of the metadata
                made = [NewTopic(f"other-{first}-{number}", 1, 1) for number in range(200)]
                for done in admin.create_topics(made).values():
                    done.result(60)
            else:
                last = (first + 99) // EVERY * EVERY
                assert offsets(home.bootstrap, "orders.eu", last) == list(range(0, first + 100, EVERY))
                found = admin.describe_topics(TopicCollection(["orders.eu"]))["orders.eu"].result(30)
                assert str(found.topic_id) == str(uuid)
            home.end()
