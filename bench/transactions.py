"""Transactional producers: throughput with a commit every 100 ms, and the latency of one record with its commit.

The floors and goals of the throughput are those of the same loads without transactions. The floors and goals of the
commits are based on those of acknowledgements.
"""

import subprocess
import time
from pathlib import Path

from confluent_kafka import Producer

from bench.control import fresh_topic
from bench.librdkafka import PARTITIONS, payloads, undisturbed
from bench.measure import Better, Case, LoadError, Measure
from bench.percentile import percentile
from bench.target import Target
from oracle.jars import jars, java
from oracle.tools import compiled

SOURCE = Path(__file__).resolve().parent / "Transactions.java"
PERIOD_S = 0.1
RECORD_BYTES = 1024
SECONDS = 4.0
WARM_UP_S = 4.0
COMMITS = 500
WARM_UP_COMMITS = 500
BATCH = 500
TIMEOUT_S = 30.0


def _producer(target: Target, topic: str, **settings: object) -> Producer:
    """An initialized producer whose transactional id is the topic's name."""
    producer = Producer({"bootstrap.servers": target.bootstrap, "transactional.id": topic, "log_level": 2, **settings})
    producer.init_transactions(TIMEOUT_S)
    producer.list_topics(topic, TIMEOUT_S)
    return producer


def _java(target: Target, case: str, partitions: int, *load: object) -> list[float]:
    """The figures that the Java load prints."""
    flags = ["-Xmx512m", "-Xms512m", "-Dlog4j2.level=error", "-cp", f"{compiled(SOURCE)}:{jars()}/*"]
    with fresh_topic(target, case, partitions) as topic:
        about = [target.bootstrap, topic, partitions, topic, RECORD_BYTES, *load]
        command = [java(), *flags, "Transactions", *map(str, about)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        if ran.returncode != 0:
            raise LoadError(
                f"the Java producer failed against {target.name}:\n{ran.stdout[-1000:]}{ran.stderr[-2000:]}"
            )
    return [float(figure) for figure in ran.stdout.split()]


class Throughput(Case):
    """librdkafka sends as fast as it can and commits every 100 ms. Measures committed records per second."""

    family = "transactions"
    name = "transactions-librdkafka"
    warm_up_slices = 3
    measures = (
        Measure(
            "transactions-librdkafka.rate",
            "transactions, librdkafka 1 KiB, commit every 100 ms",
            "k/s",
            Better.HIGHER,
            0.9,
            1.0,
        ),
        Measure("transactions-librdkafka.cpu", "… broker CPU", "s/million", Better.LOWER, 1.1, 0.8),
    )

    def slice(self, target: Target) -> dict[str, float]:
        with fresh_topic(target, self.name, PARTITIONS) as topic:
            producer = _producer(target, topic)
            messages = [{"value": value} for value in payloads(RECORD_BYTES, BATCH)]
            sent, cpu, began = 0, target.cpu(), time.perf_counter()
            while time.perf_counter() < began + SECONDS:
                commit_s = time.perf_counter() + PERIOD_S
                producer.begin_transaction()
                while time.perf_counter() < commit_s:
                    sent += producer.produce_batch(topic, messages)
                    producer.poll(0)
                    while len(producer) > 50_000:
                        producer.poll(0.001)
                producer.commit_transaction(TIMEOUT_S)
            elapsed_s, used = time.perf_counter() - began, target.cpu() - cpu
        rate, cost = self.measures
        return {rate.key: sent / elapsed_s / 1e3, cost.key: used.per(sent / 1e6)}


class JavaThroughput(Case):
    """The same with Kafka's Java producer. The rate excludes its warm-up."""

    family = "transactions"
    name = "transactions-java"
    warm_up_slices = 2
    measures = (
        Measure(
            "transactions-java.rate", "transactions, Java 1 KiB, commit every 100 ms", "k/s", Better.HIGHER, 1.1, 1.2
        ),
    )

    def slice(self, target: Target) -> dict[str, float]:
        [per_s] = _java(target, self.name, PARTITIONS, "throughput", WARM_UP_S, SECONDS, int(PERIOD_S * 1000))
        return {self.measures[0].key: per_s / 1e3}


class CommitLatency(Case):
    """Latency of a transaction with one record, until the client has the result of the commit."""

    family = "transactions"
    name = "commit-librdkafka"
    warm_up_slices = 3
    measures = (
        Measure("commit-librdkafka.p50", "one record and its commit, librdkafka, p50", "ms", Better.LOWER, 1.0, 0.7),
        Measure("commit-librdkafka.p99", "… p99", "ms", Better.LOWER, 0.5, 0.34),
    )

    def slice(self, target: Target) -> dict[str, float]:
        with fresh_topic(target, self.name, 1) as topic:
            producer = _producer(target, topic, **{"linger.ms": 0})
            [value] = payloads(RECORD_BYTES, 1)
            took_s: list[float] = []
            with undisturbed():
                for _ in range(COMMITS):
                    began = time.perf_counter()
                    producer.begin_transaction()
                    producer.produce(topic, value)
                    producer.commit_transaction(TIMEOUT_S)
                    took_s.append(time.perf_counter() - began)
        p50, p99 = self.measures
        return {p50.key: percentile(took_s, 50) * 1e3, p99.key: percentile(took_s, 99) * 1e3}


class JavaCommitLatency(Case):
    """The same with Kafka's Java producer, which uses transactions version 2 (KIP-890)."""

    family = "transactions"
    name = "commit-java"
    warm_up_slices = 2
    measures = (
        Measure("commit-java.p50", "one record and its commit, Java, p50", "ms", Better.LOWER, 1.0, 0.7),
        Measure("commit-java.p99", "… p99", "ms", Better.LOWER, 0.5, 0.34),
    )

    def slice(self, target: Target) -> dict[str, float]:
        figures = _java(target, self.name, 1, "latency", WARM_UP_COMMITS, COMMITS)
        return dict(zip((measure.key for measure in self.measures), figures, strict=True))


def cases() -> list[Case]:
    return [Throughput(), JavaThroughput(), CommitLatency(), JavaCommitLatency()]
