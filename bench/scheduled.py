"""The cost of scheduled delivery: `python -m bench.scheduled` prints the rows of a table in Markdown.

Apache Kafka has no scheduled records, so they are compared with a plain topic of the same broker.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.report import number
from bench.target import Target
from oracle.broker import KPyBroker

SIZE_BYTES = 100
COUNT = 300_000
ROUNDS = 5
PER_SECOND, SECONDS = 1000, 20
BURST = 1_000_000
QUEUE = {"queue.buffering.max.messages": 2_000_000, "queue.buffering.max.kbytes": 1_048_576, "linger.ms": 5}
VALUE = b"x" * SIZE_BYTES
LATER = [("deliver-after", b"30d")]
PRODUCER = """
import sys, time
from confluent_kafka import Producer

bootstrap, topic, count, name, value = sys.argv[1:]
producer = Producer({"bootstrap.servers": bootstrap, **%r})
headers, body = [(name, value)], b"x" * %d
for number in range(int(count)):
    while True:
        try:
            producer.produce(topic, body, headers=headers, partition=0)
            break
        except BufferError:
            producer.poll(0.1)
    if number %% 1000 == 0:
        producer.poll(0)
assert producer.flush(120) == 0
"""


def row(label: str, figure: str) -> None:
    print(f"| {label} | {figure} |", flush=True)


def make(broker: KPyBroker, topic: str, *, scheduled: bool) -> None:
    """Create a topic with one partition."""
    settings = {"kpybroker.delivery.scheduled": "true"} if scheduled else {}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=settings)])[topic].result(30)


def send(broker: KPyBroker, topic: str, count: int, header: tuple[str, bytes]) -> tuple[float, float]:
    """Send records, and return the rate and the broker's CPU microseconds per record."""
    target = Target("kpybroker", broker.bootstrap, broker.pid)
    producer = Producer({"bootstrap.servers": broker.bootstrap, **QUEUE})
    producer.list_topics(topic)
    before, began, headers = target.cpu(), time.perf_counter(), [header]
    for sent in range(count):
        producer.produce(topic, VALUE, headers=headers, partition=0)
        if sent % 1000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
    elapsed_s = time.perf_counter() - began
    return count / elapsed_s, (target.cpu() - before).total_s / count * 1e6


def intake(broker: KPyBroker) -> None:
    """The rate at which records are scheduled, beside that of a plain topic with the same headers, in turn."""
    make(broker, "plain", scheduled=False)
    make(broker, "later", scheduled=True)
    rates: dict[str, list[tuple[float, float]]] = {"plain": [], "later": []}
    for turn in range(ROUNDS + 1):
        for topic, measured in rates.items():
            found = send(broker, topic, COUNT, LATER[0])
            if turn:  # the first round warms up
                measured.append(found)
    plain, later = ([statistics.median(each) for each in zip(*rates[topic], strict=True)] for topic in rates)
    low, high = (pick(b[0] / a[0] for a, b in zip(*rates.values(), strict=True)) for pick in (min, max))
    told = f"{number(later[0] / 1e3)} k/s beside {number(plain[0] / 1e3)} k/s on a plain topic"
    row("scheduling 100-byte records, librdkafka", f"{told}: {later[0] / plain[0]:.2f} [{low:.2f} to {high:.2f}]")
    row("… broker CPU", f"{later[1]:.1f} us a record beside {plain[1]:.1f}")


def lateness(broker: KPyBroker) -> None:
    """How late a consumer receives records of which PER_SECOND are due in each second."""
    make(broker, "steady", scheduled=True)
    producer = Producer({"bootstrap.servers": broker.bootstrap, **QUEUE})
    begin_ms, total = int(time.time() * 1000) + 4000, PER_SECOND * SECONDS
    for sent in range(total):
        due_ms = begin_ms + sent * 1000 // PER_SECOND
        producer.produce("steady", b"%d" % due_ms, headers=[("deliver-at", b"%d" % due_ms)], partition=0)
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "bench", "fetch.wait.max.ms": 500})
    consumer.assign([TopicPartition("steady", 0, OFFSET_BEGINNING)])
    late_ms: list[float] = []
    while len(late_ms) < total:
        for message in consumer.consume(1000, 0.01):
            late_ms.append(time.time() * 1000 - int(message.value() or b""))
    consumer.close()
    late_ms.sort()
    p50, p99 = (late_ms[int(len(late_ms) * share)] for share in (0.5, 0.99))
    row(f"lateness at {PER_SECOND:,} due a second, at the consumer", f"p50 {p50:.0f} ms, p99 {p99:.0f} ms")


def burst(broker: KPyBroker) -> None:
    """The rate at which records are delivered that are all due at the same time."""
    make(broker, "burst", scheduled=True)
    due_ms = int(time.time() * 1000) + 60_000
    send(broker, "burst", BURST, ("deliver-at", b"%d" % due_ms))
    time.sleep(max(due_ms / 1000 - time.time(), 0))
    target, began = Target("kpybroker", broker.bootstrap, broker.pid), time.perf_counter()
    before = target.cpu()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "bench"})
    consumer.assign([TopicPartition("burst", 0, OFFSET_BEGINNING)])
    found = 0
    while found < BURST:
        found += len(consumer.consume(10_000, 0.05))
    elapsed_s = time.perf_counter() - began
    consumer.close()
    used_us = (target.cpu() - before).total_s / BURST * 1e6
    row(f"{BURST:,} records due at once", f"{BURST / elapsed_s / 1e3:.0f} k/s, {used_us:.1f} us of broker CPU a record")


def many(count: int) -> None:
    """The start of a broker with many pending records, and its memory."""
    with tempfile.TemporaryDirectory() as directory:
        broker = KPyBroker(Path(directory)).start()
        make(broker, "many", scheduled=True)
        script = PRODUCER % (QUEUE, SIZE_BYTES)
        arguments = [broker.bootstrap, "many", str(count), "deliver-after", "30d"]
        subprocess.run([sys.executable, "-c", script, *arguments], check=True)
        broker.stop()
        began = time.perf_counter()
        broker.restart()
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "bench"})
        consumer.list_topics("many", timeout=30)
        serves_s = time.perf_counter() - began
        target = Target("kpybroker", broker.bootstrap, broker.pid)
        idle_s, used_s = 0.0, target.cpu().total_s
        while idle_s < 2:
            time.sleep(0.5)
            now_s = target.cpu().total_s
            idle_s = idle_s + 0.5 if now_s - used_s < 0.1 else 0.0
            used_s = now_s
        loaded_s = time.perf_counter() - began - idle_s
        memory_mb = target.resident_bytes() / 1e6
        broker.stop()
    told = f"{serves_s:.1f} s to serve, {loaded_s:.0f} s to deliver again, {memory_mb:.0f} MB"
    row(f"start with {count:,} pending records", told)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scheduled", description=__doc__)
    parser.add_argument("--many", type=int, default=10_000_000, help="how many records are pending at the last start")
    given = parser.parse_args()
    print("| load | kpybroker |\n|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        broker = KPyBroker(Path(directory)).start()
        intake(broker)
        lateness(broker)
        burst(broker)
        broker.stop()
    many(given.many)


if __name__ == "__main__":
    main()
