"""Rebalance times of two consumers on a laptop: `python -m bench.laptop_groups` prints rows of docs/benchmarks.md.

librdkafka consumers with the consumer protocol (KIP-848) on `kpybroker dev`, and on `kpybroker serve` and Apache Kafka
with Kafka's defaults. Each run has its own topic and group.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.brokers import broker
from bench.control import fresh_name
from bench.measure import LoadError
from bench.report import number
from kpybroker.testing import Broker

PARTITIONS = 4
TIMEOUT_S = 60.0
POLL_S = 0.005
BROKERS = ("kpybroker dev", "kpybroker serve", "Kafka")
ROWS = (
    "a second member joins: time until it has half of the partitions",
    "a member closes: time until the other member has all partitions",
    "a topic is created: time until a group that subscribed to a regular expression has it",
)


def waits(bootstrap: str) -> list[float]:
    """The times in seconds, in the order of ROWS. Raises LoadError if an assignment takes more than a minute."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = fresh_name("laptop")
    _make(admin, topic)
    first, second = _consumer(bootstrap, topic), _consumer(bootstrap, topic)
    try:
        first.subscribe([topic])
        _until([first], lambda: len(first.assignment()) == PARTITIONS)
        second.subscribe([topic])
        halves = _until([first, second], lambda: [len(each.assignment()) for each in (first, second)] == [2, 2])
        begun = time.monotonic()
        second.close()
        whole = time.monotonic() - begun + _until([first], lambda: len(first.assignment()) == PARTITIONS)
    finally:
        first.close()
    return [halves, whole, _expression(bootstrap, admin)]


def _expression(bootstrap: str, admin: AdminClient) -> float:
    prefix = fresh_name("regex")
    _make(admin, f"{prefix}-a")
    consumer = _consumer(bootstrap, prefix)
    try:
        consumer.subscribe([f"^{prefix}-.*"])
        _until([consumer], lambda: len(consumer.assignment()) == PARTITIONS)
        _make(admin, f"{prefix}-b")
        return _until([consumer], lambda: len(consumer.assignment()) == 2 * PARTITIONS)
    finally:
        consumer.close()


def _make(admin: AdminClient, topic: str) -> None:
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(TIMEOUT_S)


def _consumer(bootstrap: str, group: str) -> Consumer:
    return Consumer({"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer"})


def _until(consumers: list[Consumer], holds: Callable[[], bool]) -> float:
    """Poll all consumers in turn until `holds`. Returns the seconds it took."""
    begun = time.monotonic()
    while not holds():
        if time.monotonic() - begun > TIMEOUT_S:
            raise LoadError(f"not assigned after {TIMEOUT_S:.0f} s")
        for consumer in consumers:
            consumer.poll(POLL_S)
    return time.monotonic() - begun


@contextlib.contextmanager
def _started(name: str) -> Iterator[str]:
    """The bootstrap address of a running broker."""
    if name == "kpybroker dev":
        with Broker() as process:
            yield process.bootstrap
    else:
        with broker("kafka" if name == "Kafka" else "kpybroker", {}) as server:
            yield server.bootstrap


def main() -> None:
    """Print the table: median [smallest-largest]."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    columns = []
    for name in BROKERS:
        with _started(name) as bootstrap:
            waits(bootstrap)  # creates __consumer_offsets, and warms up Apache Kafka
            columns.append([waits(bootstrap) for _ in range(runs)])
    print(f"| measurement | unit | {' | '.join(BROKERS)} |\n|---|---|{'---|' * len(BROKERS)}")
    for row, what in enumerate(ROWS):
        values = [[waited[row] for waited in runs] for runs in columns]
        spreads = [f"{number(statistics.median(v))} [{number(min(v))}-{number(max(v))}]" for v in values]
        print(f"| {what} | s | {' | '.join(spreads)} |")


if __name__ == "__main__":
    main()
