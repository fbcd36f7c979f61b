"""Tests that records are read as they were sent: codecs, acks, sizes, keys, headers, null values, batches of
thousands."""

import random
import time
from collections.abc import Iterator
from itertools import product

import pytest

from compat_tests.clients import each_client
from compat_tests.conftest import MakeTopic, Running
from compat_tests.vocabulary import (
    ACKS,
    CODECS,
    Acks,
    Client,
    Codec,
    Consumer,
    Header,
    Message,
    Producer,
    Received,
    Refused,
    closing,
    send_all,
)

SIZES = (1, 1_000, 1_000_000, 10_000_000)
HEADERS: tuple[Header, ...] = (("again", b"1"), ("again", b"2"), ("", b""), ("größe", bytes(range(256))))
NULL_HEADERS: tuple[Header, ...] = (("none", None), ("again", b"1"), ("none", None))
BATCH_COUNT = 5_000


class Kept:
    """Producers and consumers that several tests share, as in practice; this also saves time for connecting."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._producers: dict[tuple[str, Codec, Acks], Producer] = {}
        self._consumers: dict[str, Consumer] = {}

    def producer(self, client: Client, codec: Codec, acks: Acks) -> Producer:
        which = (client.name, codec, acks)
        if which not in self._producers:
            self._producers[which] = client.producer(self.bootstrap, codec=codec, acks=acks, linger_ms=20)
        return self._producers[which]

    def consumer(self, client: Client) -> Consumer:
        if client.name not in self._consumers:
            self._consumers[client.name] = client.consumer(self.bootstrap)
        return self._consumers[client.name]

    def close(self) -> None:
        with closing(*self._producers.values(), *self._consumers.values()):
            pass


@pytest.fixture(scope="module")
def kept(target: Running) -> Iterator[Kept]:
    kept = Kept(target.bootstrap)
    yield kept
    kept.close()


def payload(size: int, seed: int) -> bytes:
    """Bytes of which half compress well, and half do not."""
    noise = random.Random(seed).randbytes(max(1, min(size, 65_536) // 2))
    block = noise + bytes([seed % 256]) * len(noise)
    return (block * (size // len(block) + 1))[:size]


def shapes(size: int) -> list[Message]:
    """Each combination of key, value and headers that a record can have; with values of a given size."""
    value = payload(size, 1)
    if size >= 1_000_000:
        return [Message(value, b"key", HEADERS, 1_700_000_000_123), Message(payload(size, 2))]
    return [
        Message(value, key, headers, timestamp_ms=1_700_000_000_000 + at)
        for at, (value, key, headers) in enumerate(
            product((value, b"", None), (b"key", b"", None), ((), HEADERS, NULL_HEADERS))
        )
    ]


def read(consumer: Consumer, count: int, timeout_s: float = 30) -> list[Received]:
    """Poll until there are `count` records. Returns fewer if the time has passed before."""
    deadline = time.monotonic() + timeout_s
    found: list[Received] = []
    while len(found) < count and time.monotonic() < deadline:
        found += consumer.poll(0.5)
    return found


def content(message: Message | Received) -> tuple[bytes | None, bytes | None, tuple[Header, ...]]:
    return message.key, message.value, message.headers


@each_client(codec=CODECS, acks=ACKS, size=SIZES)
def test_sent_records_are_read(
    client: Client, codec: Codec, acks: Acks, size: int, kept: Kept, make_topic: MakeTopic
) -> None:
    topic = make_topic(max_message_bytes=12 << 20)
    messages = [message for message in shapes(size) if client.can_send(message)]
    consumer = kept.consumer(client)
    placed = send_all(kept.producer(client, codec, acks), topic, messages)
    consumer.assign({(topic, 0): "earliest"})
    received = read(consumer, len(messages))
    assert [content(message) for message in received] == [content(message) for message in messages]
    assert [message.offset for message in received] == list(range(len(messages)))
    for message, got in zip(messages, received, strict=True):
        assert message.timestamp_ms in (None, got.timestamp_ms)
    if acks != "0":
        assert [place.offset for place in placed] == list(range(len(messages)))


@each_client(codec=CODECS, acks=ACKS)
def test_batches_of_thousands(client: Client, codec: Codec, acks: Acks, kept: Kept, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=2)
    messages = [Message(f"value {n}".encode() * (n % 7), f"{n}".encode(), partition=n % 2) for n in range(BATCH_COUNT)]
    consumer = kept.consumer(client)
    placed = send_all(kept.producer(client, codec, acks), topic, messages)
    consumer.assign({(topic, 0): "earliest", (topic, 1): "earliest"})
    received = read(consumer, len(messages))
    for partition in range(2):
        got = [message for message in received if message.partition == partition]
        assert [(one.key, one.value) for one in got] == [(m.key, m.value) for m in messages[partition::2]]
        assert [one.offset for one in got] == list(range(len(got)))
        if acks != "0":
            assert [place.offset for place in placed[partition::2]] == list(range(len(got)))


@each_client()
def test_a_message_larger_than_the_topic_allows_is_refused(
    client: Client, broker: Running, make_topic: MakeTopic
) -> None:
    topic = make_topic(max_message_bytes=100_000)
    producer = client.producer(broker.bootstrap)
    consumer = client.consumer(broker.bootstrap)
    with closing(producer, consumer):
        send_all(producer, topic, [Message(b"small")])
        with pytest.raises(Refused, match=r"(?i)too.?large"):
            send_all(producer, topic, [Message(payload(200_000, 1))])
        send_all(producer, topic, [Message(b"small again")])
        consumer.assign({(topic, 0): "earliest"})
        assert [one.value for one in read(consumer, 2)] == [b"small", b"small again"]


@each_client(codec=CODECS)
def test_the_topic_decides_on_compression_and_time(
    client: Client, codec: Codec, broker: Running, make_topic: MakeTopic
) -> None:
    topic = make_topic(compression_type="zstd" if codec == "gzip" else "gzip", message_timestamp_type="LogAppendTime")
    messages = [Message(payload(1000, n), timestamp_ms=1_000) for n in range(100)]
    producer = client.producer(broker.bootstrap, codec=codec)
    consumer = client.consumer(broker.bootstrap)
    before_ms = int(time.time() * 1000)
    with closing(producer, consumer):
        send_all(producer, topic, messages)
        consumer.assign({(topic, 0): "earliest"})
        received = read(consumer, len(messages))
    assert [one.value for one in received] == [one.value for one in messages]
    assert all(before_ms - 1000 <= one.timestamp_ms <= time.time() * 1000 + 1000 for one in received)


@each_client(codec=CODECS)
def test_a_batch_with_a_record_that_is_too_old_is_refused(
    client: Client, codec: Codec, broker: Running, make_topic: MakeTopic
) -> None:
    topic = make_topic(message_timestamp_before_max_ms=60_000)
    now_ms = int(time.time() * 1000)
    old, new = (Message(payload(100, n), timestamp_ms=now_ms - age_ms) for n, age_ms in enumerate((3_600_000, 0)))
    producer = client.producer(broker.bootstrap, codec=codec)
    consumer = client.consumer(broker.bootstrap)
    with closing(producer, consumer):
        with pytest.raises(Refused, match=r"(?i)timestamp"):
            send_all(producer, topic, [old, new])
        send_all(producer, topic, [new])
        consumer.assign({(topic, 0): "earliest"})
        assert read(consumer, 1)[0].value == new.value
