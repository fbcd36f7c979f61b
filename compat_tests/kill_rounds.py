"""Kills a broker with SIGKILL again and again, under load, and checks after each restart that no acknowledged data is
lost.

`python -m compat_tests.kill_rounds --rounds 200` shows a progress bar; the test suite runs a few rounds. The seed
determines the moments and the torn files, but not the scheduling of the operating system.
"""

import argparse
import random
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from compat_tests.client_confluent import Confluent
from compat_tests.dumps import dump_everything
from compat_tests.ledger import PARTITIONS, Commits, Ledger, Production, Topics, Worker
from compat_tests.vocabulary import Received, Refused, closing
from oracle.broker import KPyBroker
from oracle.kafka import Kafka
from oracle.target import NotStarted

TOPIC, GROUP = "load", "commits"
SEGMENT_BYTES = 65536
LOADED_AT_LEAST_S, LOADED_AT_MOST_S = 0.2, 1.0
TORN_SHARE = 0.1
DELETING_SOON = {"log.segment.delete.delay.ms": "1000"}
PROGRESS_TIMEOUT_S = 60.0
BATCH_HEADER_BYTES = 61


class Broken(AssertionError):
    """The broker has lost or changed acknowledged data; the error text names it."""


def tear(data: Path, chance: random.Random) -> list[str]:
    """Append bytes to active segments, as an interrupted write leaves them. Acknowledged data is not changed."""
    torn = []
    for directory in sorted(
        path for path in data.iterdir() if path.is_dir() and (path / "partition.metadata").exists()
    ):
        logs = sorted(directory.glob("*.log"))
        if not logs or chance.random() < 0.25:
            continue
        log = logs[-1]
        content = log.read_bytes()
        kind = chance.choice(("half a batch", "zeros", "noise", "a header"))
        if kind == "zeros":
            tail = bytes(chance.randrange(1, 4096))
        elif kind == "noise" or len(content) < BATCH_HEADER_BYTES:
            tail = chance.randbytes(chance.randrange(1, 4096))
        else:
            tail = unfinished(content, chance) if kind == "half a batch" else content[:BATCH_HEADER_BYTES]
        with log.open("ab") as file:
            file.write(tail)
        torn.append(f"{directory.name}/{log.name} + {len(tail)} bytes ({kind})")
    return torn


def unfinished(content: bytes, chance: random.Random) -> bytes:
    """The beginning of a copy of the last batch, with the next offset."""
    at = last = 0
    while at + BATCH_HEADER_BYTES <= len(content):
        last = at
        at += 12 + int.from_bytes(content[at + 8 : at + 12], "big")
    batch = content[last:at]
    following = int.from_bytes(batch[:8], "big") + int.from_bytes(batch[23:27], "big") + 1
    return (following.to_bytes(8, "big") + batch[8:])[: chance.randrange(1, len(batch))]


class Rounds:
    """One broker on one directory, the load on it, and the observations so far."""

    def __init__(self, broker: KPyBroker | Kafka, seed: int) -> None:
        self.broker = broker
        self.chance = random.Random(seed)
        self.ledger = Ledger()
        self.client = Confluent()
        self.torn: list[str] = []
        self._checked = dict.fromkeys(range(PARTITIONS), 0)
        self._numbers: dict[tuple[str, int], int] = {}

    def start(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        settings = {"internal.segment.bytes": str(SEGMENT_BYTES)}
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=settings)])[TOPIC].result(30)
        where = self.broker.bootstrap
        self._parts = [Production(self.ledger, self.client, where, TOPIC, name) for name in ("a", "b")]
        self._commits = Commits(self.ledger, self.client, where, TOPIC, GROUP)
        self._topics = Topics(self.ledger, where, "made")
        self._workers = [Worker(self.ledger, part.step, 0.02) for part in self._parts]
        self._workers.append(Worker(self.ledger, self._commits.step, 0))
        self._workers.append(Worker(self.ledger, self._topics.step, 0.1))

    def play(self, torn: bool) -> None:
        """One round: load, kill at a random moment, perhaps tear, restart, check."""
        self._await_progress()
        time.sleep(self.chance.uniform(LOADED_AT_LEAST_S, LOADED_AT_MOST_S))
        self.broker.kill9()
        if torn:
            self.torn += tear(self.broker.data, self.chance)
        with self.ledger.lock:
            placed = dict(self.ledger.placed)
            committed, created = dict(self.ledger.committed), dict(self.ledger.created)
            deleted = set(self.ledger.deleted)
        self.broker.restart()
        self._check_records(placed)
        self._check_commits(committed)
        self._check_topics(created, deleted)

    def finish(self) -> None:
        """Wait until all requests in flight are complete, and check all data once more, from the first record on."""
        for worker in self._workers:
            worker.stop()
        for part in self._parts:
            part.finish()
        self._commits.finish()
        if self.ledger.failures:
            raise Broken(f"the load gave up: {self.ledger.failures[:5]}")
        self._checked = dict.fromkeys(range(PARTITIONS), 0)
        self._numbers.clear()
        self._check_records(self.ledger.placed)
        self._check_commits(self.ledger.committed)
        self._check_topics(self.ledger.created, self.ledger.deleted)
        self.broker.stop()
        dump_everything(self.broker.data)

    def _await_progress(self) -> None:
        """Wait until records, commits and topics have been acknowledged in this round, too."""
        start = (self.ledger.records, sum(self.ledger.committed.values()))
        deadline = time.monotonic() + PROGRESS_TIMEOUT_S
        while self.ledger.records <= start[0] or sum(self.ledger.committed.values()) <= start[1]:
            if self.ledger.failures:
                raise Broken(f"the load gave up: {self.ledger.failures[:5]}")
            if time.monotonic() > deadline:
                raise Broken(f"no progress in {PROGRESS_TIMEOUT_S:.0f} s: {start} records and commits")
            time.sleep(0.01)

    def _check_records(self, placed: dict[tuple[int, int], tuple[str, int]]) -> None:
        """Acknowledged records are at their offsets, and each producer's numbers rise by one, so there are no
        duplicates."""
        ends = dict.fromkeys(range(PARTITIONS), 0)
        for partition, offset in placed:
            ends[partition] = max(ends[partition], offset + 1)
        consumer = self.client.consumer(self.broker.bootstrap)
        with closing(consumer):
            consumer.assign({(TOPIC, partition): start for partition, start in self._checked.items()})
            deadline = time.monotonic() + PROGRESS_TIMEOUT_S
            while any(self._checked[partition] < end for partition, end in ends.items()):
                if time.monotonic() > deadline:
                    raise Broken(f"acknowledged up to {ends}, found up to {self._checked}")
                for one in consumer.poll(0.2):
                    self._check_record(one, placed)

    def _check_record(self, one: Received, placed: dict[tuple[int, int], tuple[str, int]]) -> None:
        producer, told, _ = (one.value or b"").split(b" ", 2)
        name, number = producer.decode(), int(told)
        if one.offset != self._checked[one.partition]:
            raise Broken(f"partition {one.partition}: {one.offset} follows {self._checked[one.partition] - 1}")
        if placed.get((one.partition, one.offset), (name, number)) != (name, number):
            expected = placed[(one.partition, one.offset)]
            raise Broken(f"partition {one.partition}, offset {one.offset}: {(name, number)} instead of {expected}")
        if number != self._numbers.get((name, one.partition), -1) + 1:
            last = self._numbers.get((name, one.partition))
            raise Broken(f"partition {one.partition}, producer {name}: {number} follows {last}")
        self._numbers[(name, one.partition)] = number
        self._checked[one.partition] = one.offset + 1

    def _check_commits(self, committed: dict[int, int]) -> None:
        consumer = self.client.consumer(self.broker.bootstrap, group=GROUP)
        with closing(consumer):
            for partition, offset in committed.items():
                found = _patiently(lambda at=partition: consumer.committed((TOPIC, at)))  # type: ignore[misc]
                if found is None or found < offset:
                    raise Broken(f"partition {partition}: committed {offset}, but {found} after the restart")

    def _check_topics(self, created: dict[str, int], deleted: set[str]) -> None:
        topics = AdminClient({"bootstrap.servers": self.broker.bootstrap}).list_topics(timeout=30).topics
        with self.ledger.lock:
            created = {name: count for name, count in created.items() if name in self.ledger.created}
        for name, partitions in created.items():
            if name not in topics:
                raise Broken(f"topic {name} was created and is missing")
            if len(topics[name].partitions) != partitions:
                raise Broken(f"topic {name} has {len(topics[name].partitions)} partitions instead of {partitions}")
        if deleted & topics.keys():
            raise Broken(f"deleted topics exist again: {sorted(deleted & topics.keys())}")


def _patiently(ask: Callable[[], int | None]) -> int | None:
    """Retry while a coordinator is loading, or while it cannot return a commit yet."""
    deadline = time.monotonic() + PROGRESS_TIMEOUT_S
    while True:
        try:
            return ask()
        except Refused:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def play(
    broker: KPyBroker | Kafka, count: int, seed: int, after_each: Callable[[Rounds], None] = lambda _: None
) -> Rounds:
    """Run this many rounds on a running broker, a tenth of them with torn files. Raises Broken if acknowledged data is
    lost."""
    rounds = Rounds(broker, seed)
    torn = set(random.Random(seed).sample(range(count), max(1, round(count * TORN_SHARE))))
    rounds.start()
    for number in range(count):
        rounds.play(number in torn)
        after_each(rounds)
    rounds.finish()
    return rounds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--target", choices=("kpybroker", "kafka"), default="kpybroker")
    parser.add_argument("--fsync", choices=("page-cache", "always"), default="page-cache")
    arguments = parser.parse_args()
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    if arguments.target == "kafka":
        broker: KPyBroker | Kafka = Kafka(properties={"offsets.topic.num.partitions": "5", **DELETING_SOON})
    else:
        broker = KPyBroker(properties={"kpybroker.fsync": arguments.fsync, **DELETING_SOON})
    try:
        with Progress(*columns, console=console) as progress:
            task = progress.add_task(f"seed {arguments.seed}", total=arguments.rounds)

            def advance(rounds: Rounds) -> None:
                progress.update(
                    task, advance=1, description=f"seed {arguments.seed}: {rounds.ledger.records:,} records"
                )

            rounds = play(broker.start(), arguments.rounds, arguments.seed, advance)
    except (Broken, NotStarted, Refused) as broken:
        broker.kill9()
        console.print(f"[red]broken[/red] with seed {arguments.seed}, directory {broker.directory}: {broken}")
        return 1
    shutil.rmtree(broker.directory, ignore_errors=True)
    console.print(
        f"{arguments.rounds} rounds of kill -9, {len(rounds.torn)} files torn: {rounds.ledger.records:,} acknowledged "
        f"records, each there once and in order; commits and topics kept; every file readable by Kafka."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
