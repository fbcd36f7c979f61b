"""Throughput and latency of librdkafka (through confluent-kafka)."""

import gc
import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from bench.control import create_topic, delete_topic, end_offsets, fresh_name
from bench.measure import Better, Brokers, Case, LoadError, Measure
from bench.memory import LITTLE_BYTES
from bench.percentile import percentile
from bench.target import Target

PARTITIONS = 4
BATCH = 10_000
_QUEUE = {"queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1_048_576}


def payloads(size_bytes: int, count: int = 1000) -> list[bytes]:
    """Typical records of applications: JSON of exactly `size_bytes`, which compresses about 1 : 4."""
    chance = random.Random(7)
    return [_payload(size_bytes, chance) for _ in range(count)]


def _payload(size_bytes: int, chance: random.Random) -> bytes:
    carriers = ["UA", "AA", "B6", "DL", "EV", "MQ", "US", "WN", "VX", "FL"]
    flights = bytearray()
    while len(flights) < size_bytes:
        flight = {
            "carrier": chance.choice(carriers),
            "flight": chance.randrange(1, 8000),
            "dep_delay": chance.randrange(-20, 300),
            "arr_delay": chance.randrange(-20, 300),
            "distance": chance.randrange(80, 4983),
        }
        flights += json.dumps(flight).encode() + b"\n"
    return bytes(flights[:size_bytes])


def produce_all(producer: Producer, topic: str, messages: list[dict[str, bytes]], count: int) -> None:
    """Send `count` messages, cycling through `messages`, and wait until all are acknowledged."""
    sent = 0
    while sent < count:
        sent += producer.produce_batch(topic, messages[: count - sent])
        producer.poll(0)
        while len(producer) > 500_000:
            producer.poll(0.001)
    if producer.flush(60):
        raise LoadError("librdkafka still waits for acknowledgements after 60 s")


class Produce(Case):
    """Default settings except the codec. Every record must be in the log afterwards."""

    family = "librdkafka"

    def __init__(self, size_bytes: int, codec: str, count: int, rate: Measure, cpu: Measure) -> None:
        self.is_quick = size_bytes == 100 and self.brokers is Brokers.DEFAULT
        self.name = f"librdkafka-produce-{size_bytes}-{codec}"
        self.measures = (rate, cpu)
        self.codec = codec
        self.count = count
        values = payloads(size_bytes)
        self.messages = [{"value": values[i % len(values)]} for i in range(BATCH)]

    def slice(self, target: Target) -> dict[str, float]:
        topic = fresh_name(self.name)
        create_topic(target, topic, PARTITIONS)
        producer = Producer({"bootstrap.servers": target.bootstrap, "compression.type": self.codec, **_QUEUE})
        producer.list_topics(topic, 10)
        cpu, began = target.cpu(), time.perf_counter()
        produce_all(producer, topic, self.messages, self.count)
        elapsed_s, used = time.perf_counter() - began, target.cpu() - cpu
        stored = sum(end_offsets(target, topic, PARTITIONS))
        if stored != self.count:
            raise LoadError(f"{target.name} holds {stored} of {self.count} acknowledged records")
        delete_topic(target, topic)
        rate, cost = self.measures
        return {rate.key: self.count / elapsed_s / 1e3, cost.key: used.per(self.count / 1e6)}


class Consume(Case):
    """Read a topic of uncompressed 1 KiB records from its beginning."""

    family = "librdkafka"
    name = "librdkafka-consume"
    touched_bytes = LITTLE_BYTES
    is_quick = True
    count = 600_000
    measures = (
        Measure("librdkafka-consume.rate", "librdkafka consume 1 KiB", "k/s", Better.HIGHER, 1.2, 1.3),
        Measure("librdkafka-consume.cpu", "… broker CPU", "s/million", Better.LOWER, 0.4, 0.2),
    )

    def __init__(self) -> None:
        self.topics: dict[str, str] = {}

    def prepare(self, target: Target) -> None:
        topic = self.topics[target.name] = fresh_name(self.name)
        create_topic(target, topic, PARTITIONS)
        values = payloads(1024)
        messages = [{"value": values[i % len(values)]} for i in range(BATCH)]
        produce_all(Producer({"bootstrap.servers": target.bootstrap, **_QUEUE}), topic, messages, self.count)

    def slice(self, target: Target) -> dict[str, float]:
        topic = self.topics[target.name]
        consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": "bench", "enable.auto.commit": False})
        cpu = target.cpu()
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
        first = consumer.consume(1, 10)
        seen, began = len(first), time.perf_counter()
        size_bytes = 0
        while seen < self.count:
            messages = consumer.consume(min(BATCH, self.count - seen), 5)
            if not messages:
                raise LoadError(f"{target.name} returned {seen} of {self.count} records and then nothing for 5 s")
            size_bytes += sum(map(len, messages))
            seen += len(messages)
        elapsed_s, used = time.perf_counter() - began, target.cpu() - cpu
        consumer.close()
        if size_bytes < (self.count - 1) * 1024:
            raise LoadError(f"{target.name} returned {size_bytes} bytes in {seen} records")
        rate, cost = self.measures
        return {rate.key: self.count / elapsed_s / 1e3, cost.key: used.per(self.count / 1e6)}

    def clean(self, target: Target) -> None:
        delete_topic(target, self.topics[target.name])


@contextmanager
def undisturbed() -> Iterator[None]:
    """Disable garbage collection during a latency measurement."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def pace(per_s: int, seconds: float) -> Iterator[int]:
    """Yield 0, 1, 2, ... at a rate, by the clock, so that a late number does not delay the next."""
    began = time.perf_counter()
    for index in range(int(per_s * seconds)):
        wait_s = began + index / per_s - time.perf_counter()
        if wait_s > 0:
            time.sleep(wait_s)
        yield index


class AckLatency(Case):
    """Time from produce() to the acknowledgement at 1,000 messages of 100 B a second, without linger, acks=all."""

    family = "librdkafka"
    name = "fsync-librdkafka-ack"
    brokers = Brokers.FSYNC
    warm_up_slices = 2
    touched_bytes = LITTLE_BYTES
    seconds = 3.0
    measures = (
        Measure("fsync-librdkafka-ack.p50", "on disk: librdkafka ack p50, 1,000 msg/s", "ms", Better.LOWER),
        Measure("fsync-librdkafka-ack.p99", "… p99", "ms", Better.LOWER, 0.2, 0.1),
    )

    def slice(self, target: Target) -> dict[str, float]:
        topic = fresh_name(self.name)
        create_topic(target, topic, 1)
        latencies_s: list[float] = []
        errors: list[KafkaError] = []

        def acknowledged(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(error)
            latencies_s.append(message.latency() or 0.0)

        producer = Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 0})
        producer.list_topics(topic, 10)
        value = payloads(100, 1)[0]
        with undisturbed():
            for _ in pace(1000, self.seconds):
                producer.produce(topic, value, on_delivery=acknowledged)
                producer.poll(0)
            producer.flush(30)
        delete_topic(target, topic)
        if errors or len(latencies_s) != int(1000 * self.seconds):
            raise LoadError(f"{target.name} acknowledged {len(latencies_s)} records; errors: {errors[:1]}")
        p50, p99 = self.measures
        return {p50.key: percentile(latencies_s, 50) * 1e3, p99.key: percentile(latencies_s, 99) * 1e3}


class EndToEnd(Case):
    """Time from produce() to consume() in one process at 1,000 messages of 100 B a second."""

    family = "librdkafka"
    name = "librdkafka-end-to-end"
    warm_up_slices = 2
    touched_bytes = LITTLE_BYTES
    seconds = 4.0
    is_quick = True
    measures = (
        Measure("librdkafka-end-to-end.p50", "end to end, librdkafka, 1,000 msg/s, p50", "ms", Better.LOWER),
        Measure("librdkafka-end-to-end.p99", "… p99", "ms", Better.LOWER, 0.4, 0.3),
        Measure("librdkafka-end-to-end.cpu", "… broker CPU", "µs/message", Better.LOWER),
    )

    def slice(self, target: Target) -> dict[str, float]:
        topic = fresh_name(self.name)
        create_topic(target, topic, 1)
        producer = Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 0})
        producer.produce(topic, b"first")
        consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": "bench", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        if producer.flush(10) or not consumer.consume(1, 10):
            raise LoadError(f"{target.name} did not deliver a record within 10 s")
        count = int(1000 * self.seconds)
        sent_at = [0.0] * count
        latencies_s: list[float] = []
        reader = threading.Thread(target=_read, args=(consumer, sent_at, latencies_s))
        cpu = target.cpu()
        with undisturbed():
            reader.start()
            for index in pace(1000, self.seconds):
                sent_at[index] = time.perf_counter()
                producer.produce(topic, b"%-100d" % index)
            producer.flush(10)
            reader.join()
        used = target.cpu() - cpu
        consumer.close()
        delete_topic(target, topic)
        if len(latencies_s) != count:
            raise LoadError(f"{target.name} delivered {len(latencies_s)} of {count} records")
        p50, p99 = (percentile(latencies_s, percent) * 1e3 for percent in (50, 99))
        figures = (p50, p99, used.per(count / 1e6))
        return {measure.key: figure for measure, figure in zip(self.measures, figures, strict=True)}


def _read(consumer: Consumer, sent_at: list[float], latencies_s: list[float]) -> None:
    """Record the latency of each message, by its index in `sent_at`. Ends when all messages have arrived, or when none
    has arrived for 5 s."""
    while len(latencies_s) < len(sent_at):
        message = consumer.poll(5)
        if message is None:
            return
        latencies_s.append(time.perf_counter() - sent_at[int(message.value() or b"")])


def _produce(
    size: str, size_bytes: int, codec: str, count: int, rate: float, cpu: tuple[float | None, float]
) -> Produce:
    key, label = f"librdkafka-produce-{size_bytes}-{codec}", f"librdkafka produce {size} {codec}"
    measure = Measure(f"{key}.rate", label, "k/s", Better.HIGHER, rate, rate + 0.2)
    cost = Measure(f"{key}.cpu", "… broker CPU", "s/million", Better.LOWER, *cpu)
    return Produce(size_bytes, codec, count, measure, cost)


def cases() -> list[Case]:
    return [
        _produce("100 B", 100, "none", 2_000_000, 0.9, (None, 0.8)),
        _produce("1 KiB", 1024, "none", 500_000, 1.1, (1.1, 0.8)),
        _produce("1 KiB", 1024, "lz4", 500_000, 1.2, (0.7, 0.55)),
        _produce("1 KiB", 1024, "zstd", 500_000, 1.2, (0.25, 0.15)),
        Consume(),
        EndToEnd(),
        AckLatency(),
    ]
