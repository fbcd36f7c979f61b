"""Kills the instances of a Kafka Streams application (exactly_once_v2) with SIGKILL again and again, and checks that
each count is written once.

`python -m compat_tests.streams_rounds --rounds 50` runs for a long time; the test suite runs a few rounds.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from compat_tests.client_confluent import Confluent
from compat_tests.conftest import Running, start_target
from compat_tests.pipelines import PATIENCE_S, Program, properties
from compat_tests.vocabulary import Consumer, closing

SOURCE, SINK = "values", "counts"
PARTITIONS = 3
KEYS = 20
IN_A_ROUND = 400
INSTANCES = 2
PROTOCOLS = ("classic", "streams")
SETTINGS: Mapping[str, str] = {
    "group.streams.min.heartbeat.interval.ms": "500",
    "group.streams.heartbeat.interval.ms": "500",
    "group.streams.min.session.timeout.ms": "3000",
    "group.streams.session.timeout.ms": "6000",
    "group.streams.initial.rebalance.delay.ms": "200",
}
"""Settings of the broker: short intervals for streams groups (KIP-1071)."""


class Broken(AssertionError):
    """A count is missing, occurs twice, or is stored before a smaller count."""


class Counted:
    """The counts in the sink for each key, read once and in the order of each partition."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.consumer.assign({(SINK, partition): "earliest" for partition in range(PARTITIONS)})
        self.counts: dict[bytes, list[int]] = defaultdict(list)

    @property
    def total(self) -> int:
        return sum(map(len, self.counts.values()))

    def await_total(self, at_least: int, programs: list[Program]) -> None:
        """Read until this many counts have arrived."""
        deadline = time.monotonic() + PATIENCE_S
        while self.total < at_least:
            for one in self.consumer.poll(0.2):
                self.counts[one.key or b""].append(int(one.value or b""))
            if time.monotonic() > deadline:
                said = "\n".join(program.tail() for program in programs)
                raise Broken(f"{self.total} of {at_least} counts after {PATIENCE_S:.0f} s:\n{said}")

    def check(self, sent: dict[bytes, int]) -> None:
        """Check that each key's counts are 1, 2, 3, ... up to the number of its records. Raises Broken."""
        for key, count in sent.items():
            if self.counts[key] != list(range(1, count + 1)):
                raise Broken(f"{key!r} was sent {count} times, and counted {self.counts[key]}")


def play(broker: Running, folder: Path, rounds: int, seed: int, protocol: str = "classic") -> int:
    """Run two instances. In each round one of them is killed, or, in one round of four, the broker. A third instance
    runs for one round in four. `protocol`: Streams' group.protocol. Returns the number of records."""
    chance = random.Random(seed)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for made in admin.create_topics([NewTopic(topic, PARTITIONS) for topic in (SOURCE, SINK)]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "log_level": 0})
    sent: dict[bytes, int] = defaultdict(int)

    def send() -> None:
        for _ in range(IN_A_ROUND):
            key = b"k%d" % chance.randrange(KEYS)
            producer.produce(SOURCE, key)
            sent[key] += 1
        producer.poll(0)

    more = properties(folder / "more", {"group.protocol": protocol})
    what = ["exactly_once_v2", "keys", SOURCE, SINK, more]

    def started(name: str) -> Program:
        where = [broker.bootstrap, "counting", name, str(folder / name)]
        return Program("Counting", *where, *what, log=folder / f"{name}.log")

    programs = [started(f"instance-{number}") for number in range(INSTANCES)]
    counted = Counted(Confluent().consumer(broker.bootstrap, isolation="read_committed"))
    try:
        with closing(counted.consumer):
            for number in range(rounds):
                send()
                if number % 4 == 1:
                    programs.append(started("another instance"))
                elif number % 4 == 2:
                    programs.pop().stop()
                # while the instances are working: the outcome of some transactions is still open
                counted.await_total(counted.total + chance.randrange(1, IN_A_ROUND // 2), programs)
                if number % 4 == 3:
                    broker.kill9()
                    broker.restart()
                else:
                    killed = programs[number % INSTANCES]
                    killed.kill9()
                    killed.start()
            send()
            if producer.flush(PATIENCE_S):
                raise Broken("the sent records are not acknowledged")
            counted.await_total(sum(sent.values()), programs)
    finally:
        for program in programs:
            program.kill9()
    counted.check(sent)
    return counted.total


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--protocol", choices=PROTOCOLS, default="classic")
    parser.add_argument("--target", choices=("kpybroker", "kafka"), default="kpybroker")
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as folder, start_target(arguments.target, SETTINGS) as broker:
        try:
            count = play(broker, Path(folder), arguments.rounds, arguments.seed, arguments.protocol)
        except Broken as broken:
            console.print(f"[red]broken[/red] with seed {arguments.seed}: {broken}", markup=True)
            return 1
    console.print(f"{arguments.rounds} kills, seed {arguments.seed}: {count:,} records, each counted once.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
