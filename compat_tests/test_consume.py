"""Tests of a consumer's position: earliest, latest, inside a batch, by time; pause and seek."""

import time
from collections.abc import Callable, Iterator
from typing import Literal

import pytest

from compat_tests.clients import CLIENTS, each_client
from compat_tests.conftest import MakeTopic, Running
from compat_tests.vocabulary import CODECS, Client, Codec, Consumer, Message, Place, Received, closing, send_all

Start = Literal["earliest", "inside-a-batch", "time"]
Access = Literal["assign", "group"]
STARTS: tuple[Start, ...] = ("earliest", "inside-a-batch", "time")
ACCESS: tuple[Access, ...] = ("assign", "group")
COUNT = 1200
INSIDE = 777
FIRST_MS = 1_700_000_000_000
STEP_MS = 10


def poll_until(consumer: Consumer, enough: Callable[[list[Received]], bool], timeout_s: float = 30) -> list[Received]:
    """Poll until a condition on the received records holds, or until the time has passed."""
    deadline = time.monotonic() + timeout_s
    found: list[Received] = []
    while not enough(found) and time.monotonic() < deadline:
        found += consumer.poll(0.2)
    return found


def values(first: int, end: int) -> list[bytes]:
    return [f"{n}".encode() for n in range(first, end)]


def in_large_batches(client: Client, bootstrap: str, topic: str, codec: Codec = "none") -> None:
    """COUNT records with a timestamp every STEP_MS, in batches of hundreds."""
    producer = client.producer(bootstrap, codec=codec, linger_ms=100)
    with closing(producer):
        send_all(
            producer,
            topic,
            [Message(f"{n}".encode(), timestamp_ms=FIRST_MS + n * STEP_MS, partition=0) for n in range(COUNT)],
        )


@pytest.fixture(scope="module")
def filled(target: Running) -> Iterator[Callable[[MakeTopic, Codec], str]]:
    """filled(make_topic, codec) -> a topic with COUNT records, shared by all tests that only read it."""
    topics: dict[Codec, str] = {}

    def fill(make_topic: MakeTopic, codec: Codec) -> str:
        if codec not in topics:
            topics[codec] = make_topic()
            in_large_batches(CLIENTS[0], target.bootstrap, topics[codec], codec)
        return topics[codec]

    yield fill
    topics.clear()


def give(consumer: Consumer, access: Access, place: Place, start: int | Literal["earliest"]) -> None:
    """Let the consumer read the partition from this offset on: by a manual assignment, or by its group and a seek."""
    if access == "assign":
        consumer.assign({place: start})
        return
    consumer.subscribe([place[0]])
    if start != "earliest":
        early = poll_until(consumer, lambda found: consumer.assignment() == {place})
        assert len(early) <= start
        consumer.seek(place, start)


@each_client(start=STARTS, codec=CODECS, access=ACCESS)
def test_a_consumer_starts_at_the_given_position(
    client: Client,
    start: Start,
    codec: Codec,
    access: Access,
    broker: Running,
    make_topic: MakeTopic,
    filled: Callable[[MakeTopic, Codec], str],
    unique: Callable[[], str],
) -> None:
    place = (filled(make_topic, codec), 0)
    consumer = client.consumer(broker.bootstrap, group=unique() if access == "group" else None)
    with closing(consumer):
        if start == "earliest":
            expected = 0
            give(consumer, access, place, "earliest")
        elif start == "inside-a-batch":
            expected = INSIDE
            give(consumer, access, place, INSIDE)
        else:
            expected = consumer.offset_at(place, FIRST_MS + INSIDE * STEP_MS - STEP_MS // 2) or -1
            assert expected == INSIDE
            give(consumer, access, place, expected)
        received = poll_until(consumer, lambda found: found != [] and found[-1].offset == COUNT - 1)
    assert [one.offset for one in received] == list(range(expected, COUNT))
    assert [one.value for one in received] == values(expected, COUNT)


@each_client(codec=CODECS, access=ACCESS)
def test_a_consumer_starts_at_the_end(
    client: Client,
    codec: Codec,
    access: Access,
    broker: Running,
    make_topic: MakeTopic,
    unique: Callable[[], str],
) -> None:
    """Existing records are not read; from the first record read on, none is missing."""
    place = (make_topic(), 0)
    in_large_batches(client, broker.bootstrap, place[0], codec)
    consumer = client.consumer(broker.bootstrap, group=unique() if access == "group" else None, start="latest")
    producer = client.producer(broker.bootstrap, codec=codec, linger_ms=0)
    received: list[Received] = []
    end = COUNT
    with closing(consumer, producer):
        consumer.assign({place: "latest"}) if access == "assign" else consumer.subscribe([place[0]])
        deadline = time.monotonic() + 30
        while not received and time.monotonic() < deadline:
            received += consumer.poll(0.5)
            send_all(producer, place[0], [Message(f"{end}".encode(), partition=0)])
            end += 1
        assert received, "nothing was seen"
        received += poll_until(consumer, lambda found: [*received, *found][-1].offset == end - 1)
    assert received[0].offset >= COUNT
    assert [one.offset for one in received] == list(range(received[0].offset, end))
    assert [one.value for one in received] == values(received[0].offset, end)


@each_client()
def test_times_are_looked_up(
    client: Client, broker: Running, make_topic: MakeTopic, filled: Callable[[MakeTopic, Codec], str]
) -> None:
    topic = filled(make_topic, "zstd")
    consumer = client.consumer(broker.bootstrap)
    with closing(consumer):
        consumer.assign({(topic, 0): "earliest"})
        for n in (0, 1, INSIDE, COUNT - 1):
            assert consumer.offset_at((topic, 0), FIRST_MS + n * STEP_MS) == n
        assert consumer.offset_at((topic, 0), 0) == 0
        assert consumer.offset_at((topic, 0), FIRST_MS + COUNT * STEP_MS) is None


@each_client()
def test_seek_moves_back_and_forth(
    client: Client, broker: Running, make_topic: MakeTopic, filled: Callable[[MakeTopic, Codec], str]
) -> None:
    topic = filled(make_topic, "lz4")
    place = (topic, 0)
    consumer = client.consumer(broker.bootstrap)
    with closing(consumer):
        consumer.assign({place: "earliest"})
        poll_until(consumer, lambda found: len(found) > 0)
        for goal in (COUNT - 1, 0, INSIDE, INSIDE - 1, 3):
            consumer.seek(place, goal)
            found = poll_until(consumer, lambda found: len(found) > 0)
            assert found[0].offset == goal
            assert [one.offset for one in found] == list(range(goal, goal + len(found)))
            assert consumer.position(place) == goal + len(found)


@each_client()
def test_a_paused_partition_waits_while_others_flow(client: Client, broker: Running, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    producer = client.producer(broker.bootstrap)
    consumer = client.consumer(broker.bootstrap)
    with closing(producer, consumer):
        consumer.assign({(topic, 0): "earliest", (topic, 1): "earliest"})
        send_all(producer, topic, [Message(b"first", partition=0), Message(b"first", partition=1)])
        poll_until(consumer, lambda found: len(found) == 2)
        consumer.pause((topic, 0))
        send_all(producer, topic, [Message(b"second", partition=n % 2) for n in range(20)])
        found = poll_until(consumer, lambda found: len(found) >= 10)
        assert {one.partition for one in found} == {1}
        assert consumer.poll(0.5) == []
        consumer.resume((topic, 0))
        found = poll_until(consumer, lambda found: len(found) >= 10)
        assert [(one.partition, one.offset) for one in found] == [(0, n) for n in range(1, 11)]


@each_client(produce_first=[True, False])
def test_a_topic_appears_when_it_is_used(
    client: Client, produce_first: bool, broker: Running, unique: Callable[[], str]
) -> None:
    topic = unique()
    consumer = client.consumer(broker.bootstrap, group=unique())
    with closing(consumer):
        if not produce_first:
            consumer.subscribe([topic])
            consumer.poll(0.5)
        producer = client.producer(broker.bootstrap)
        with closing(producer):
            send_all(producer, topic, [Message(b"here", b"key")])
        if produce_first:
            consumer.subscribe([topic])
        found = poll_until(consumer, lambda found: len(found) > 0)
    assert [(one.topic, one.key, one.value) for one in found] == [(topic, b"key", b"here")]
