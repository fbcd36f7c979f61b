"""Kills a broker with SIGKILL again and again while transactions schedule records, and checks that each record of a
committed transaction is delivered once, and none of an aborted one.

`python -m compat_tests.scheduled_rounds --rounds 50` shows a progress bar; the test suite runs a few rounds.
"""

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from compat_tests.client_confluent import Confluent
from compat_tests.vocabulary import Message, Received, Refused, TransactionalProducer, closing
from oracle.broker import KPyBroker
from oracle.kafka import Kafka

TOPIC, PARTITIONS, WRITERS = "later", 2, 2
DELAYS = (b"0", b"50ms", b"300ms", b"1s", b"3s")
LOADED_AT_MOST_S = 0.8
PATIENCE_S = 60.0


class Writer(threading.Thread):
    """Writes transactions of scheduled and other records until `stop`. A transaction that failed may have any outcome,
    but as a whole."""

    def __init__(self, bootstrap: str, name: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._where, self._id = bootstrap, name
        self._chance = random.Random(seed)
        self._stopped = threading.Event()
        self.committed: set[bytes] = set()
        self.aborted: set[bytes] = set()
        self.unknown: list[set[bytes]] = []
        self.number = 0

    def stop(self) -> None:
        self._stopped.set()
        self.join(PATIENCE_S)

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                producer = Confluent().transactional(self._where, self._id, timeout_ms=5000)
            except (Refused, KafkaException):
                self._stopped.wait(0.1)
                continue
            with closing(producer):
                try:
                    while not self._stopped.is_set():
                        self._transaction(producer)
                except (Refused, KafkaException):
                    continue

    def _transaction(self, producer: TransactionalProducer) -> None:
        values: set[bytes] = set()
        commits = self._chance.random() < 0.8
        self.unknown.append(values)
        producer.begin()
        for _ in range(self._chance.randint(1, 20)):
            value = b"%s/%d" % (self._id.encode(), self.number)
            self.number += 1
            values.add(value)
            headers = (("deliver-after", self._chance.choice(DELAYS)),) if self._chance.random() < 0.8 else ()
            producer.send(TOPIC, Message(value, b"key", headers, None, self._chance.randrange(PARTITIONS)))
        producer.flush()
        if commits:
            producer.commit()
            self.committed |= values
        else:
            producer.abort()
            self.aborted |= values
        self.unknown.remove(values)


def read_all(bootstrap: str, wanted: set[bytes]) -> list[Received]:
    """All records that a read_committed consumer reads, once those in `wanted` are there and nothing follows."""
    consumer = Confluent().consumer(bootstrap, isolation="read_committed")
    found: list[Received] = []
    with closing(consumer):
        consumer.assign({(TOPIC, partition): "earliest" for partition in range(PARTITIONS)})
        deadline, quiet = time.monotonic() + PATIENCE_S, 0
        while quiet < 20 and time.monotonic() < deadline:
            more = consumer.poll(0.2)
            found += more
            is_complete = wanted <= {record.value or b"" for record in found}
            quiet = quiet + 1 if is_complete and not more else 0
    return found


def check(writers: list[Writer], found: list[Received]) -> None:
    """Check that every transaction is atomic, and that no record appears twice. Raises AssertionError."""
    values = Counter(record.value or b"" for record in found)
    twice = [value for value, times in values.items() if times > 1]
    assert not twice, f"{len(twice)} records appear twice, among them {twice[0]!r}"
    for writer in writers:
        missing = writer.committed - values.keys()
        assert not missing, f"{len(missing)} committed records are missing, among them {min(missing)!r}"
        shown = writer.aborted & values.keys()
        assert not shown, f"{len(shown)} aborted records appear, among them {min(shown)!r}"
        for transaction in writer.unknown:
            present = transaction & values.keys()
            assert present in (set(), transaction), f"a part of a transaction appears: {sorted(present)[:3]}"


def play(broker: KPyBroker | Kafka, rounds: int, seed: int, after_each: Callable[[], None] = lambda: None) -> int:
    """Run this many rounds on a running broker. Returns the number of committed records. Raises AssertionError."""
    chance = random.Random(seed)
    settings = {"kpybroker.delivery.scheduled": "true"} if isinstance(broker, KPyBroker) else {}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=settings)])[TOPIC].result(30)
    writers = [Writer(broker.bootstrap, f"writer{number}", seed + number) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    for _ in range(rounds):
        before = [len(writer.committed) for writer in writers]
        deadline = time.monotonic() + PATIENCE_S
        while any(len(writer.committed) == had for writer, had in zip(writers, before, strict=True)):
            assert time.monotonic() < deadline, "a writer makes no progress"
            time.sleep(0.02)
        time.sleep(chance.uniform(0, LOADED_AT_MOST_S))
        broker.kill9()
        broker.restart()
        after_each()
    for writer in writers:
        writer.stop()
    committed = {value for writer in writers for value in writer.committed}
    check(writers, read_all(broker.bootstrap, committed))
    return len(committed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    console = Console()
    broker = KPyBroker().start()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=console) as progress:
            task = progress.add_task(f"seed {arguments.seed}", total=arguments.rounds)
            records = play(broker, arguments.rounds, arguments.seed, lambda: progress.update(task, advance=1))
    except AssertionError as broken:
        broker.kill9()
        console.print(f"[red]broken[/red] with seed {arguments.seed}, directory {broker.directory}: {broken}")
        return 1
    broker.stop()
    broker.remove()
    console.print(f"{arguments.rounds} rounds of kill -9: {records:,} records of committed transactions, each once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
