"""Kills brokers, and clients that copy a topic in transactions, and checks that each record is copied once and in
order.

`python -m compat_tests.exactly_once --rounds 50 --nodes 3` runs for a long time; the test suite runs a few rounds.
"""

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from compat_tests.conftest import start_target
from compat_tests.transacting import END
from compat_tests.transactors import JAVA, Transactor
from oracle.broker import KPyBroker
from oracle.cluster import Cluster
from oracle.kafka import Kafka

SOURCE, SINK, GROUP = "source", "sink", "copiers"
PARTITIONS = 6
IN_A_GROUP = ("confluent-kafka", JAVA, "kafka-python")
"""Clients whose transactions name their generation of the group, so that partitions may move between them."""
BY_PARTITION = ("aiokafka",) * 3
"""Clients that name only the group: one of them for each partition, so that its successor fences it."""
PER_S = 500
PROGRESS = 3
"""The least number of transactions of each member between two faults."""
PATIENCE_S = 120.0
BROKER = "a broker"
WANDERER = "a member that joins and leaves"


class Broken(AssertionError):
    """A record is missing, duplicated, or in the wrong place."""


class Feed:
    """Sends numbers to each partition of the source, until `finish`."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        self.sent = 0
        self._partitions = partitions
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            for _ in range(PER_S // 50 // self._partitions + 1):
                self._each(str(self.sent))
                self.sent += 1

    def _each(self, value: str) -> None:
        for partition in range(self._partitions):
            self._producer.produce(SOURCE, value.encode(), partition=partition)
        self._producer.poll(0)

    def finish(self) -> int:
        """Send END to every partition and wait for all acknowledgements. Returns the number of records before END in
        each partition."""
        self._stop.set()
        self._thread.join()
        self._each(END)
        if self._producer.flush(PATIENCE_S):
            raise Broken("the feed is not acknowledged")
        return self.sent


class Copier:
    """One of the copiers: a sequence of processes with the same transactional id. When one has ended, the next one
    starts."""

    def __init__(self, kind: str, bootstrap: str, name: str, partition: int | None) -> None:
        self.kind = kind
        self.name = name
        self.done = 0
        self.met: list[str] = []
        self._bootstrap = bootstrap
        self._partition = "-" if partition is None else partition
        self.start()

    def start(self) -> None:
        self._transactor = Transactor(self.kind, self._bootstrap)
        self._transactor.tell("transform", self.name, GROUP, SOURCE, SINK, self._partition)

    def look(self) -> None:
        """Read the copier's output, and start a successor if it gave up."""
        while not self._transactor.lines.empty():
            line = self._transactor.lines.get()
            if line is None:
                self.start()
                return
            if line.startswith("did"):
                self.done += 1
            else:
                self.met.append(line)

    def kill9(self) -> None:
        self._transactor.kill9()


class Copying:
    """A feed, the copiers, and faults. `nodes` are the nodes that may be killed; each is restarted."""

    def __init__(
        self, bootstrap: str, kinds: Sequence[str], nodes: Callable[[], Sequence[Kafka | KPyBroker]], seed: int
    ) -> None:
        self.chance = random.Random(seed)
        self._bootstrap = bootstrap
        self._nodes = nodes
        self._alone = kinds == BY_PARTITION
        self.partitions = len(kinds) if self._alone else PARTITIONS
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        topics = [NewTopic(topic, self.partitions) for topic in (SOURCE, SINK)]
        for made in self._admin.create_topics(topics).values():
            made.result(30)
        self._feed = Feed(bootstrap, self.partitions)
        self.copiers = [
            Copier(kind, bootstrap, f"{GROUP}-{at}", at if self._alone else None) for at, kind in enumerate(kinds)
        ]

    def await_progress(self) -> None:
        """Wait until every copier (in a group, most copiers) has copied records: a group member may have no
        partitions."""
        before = {copier.name: copier.done for copier in self.copiers}
        needed = len(self.copiers) if self._alone else 1
        deadline = time.monotonic() + PATIENCE_S
        while True:
            for copier in self.copiers:
                copier.look()
            moved = [copier for copier in self.copiers if copier.done >= before[copier.name] + PROGRESS]
            if len(moved) >= needed:
                return
            if time.monotonic() > deadline:
                raise Broken(f"no progress in {PATIENCE_S:.0f} s: {[copier.met[-3:] for copier in self.copiers]}")
            time.sleep(0.05)

    def play(self, trouble: str | Copier) -> None:
        """Cause one fault while all clients are active."""
        self.await_progress()
        time.sleep(self.chance.uniform(0, 0.3))
        if isinstance(trouble, Copier):
            trouble.kill9()
            time.sleep(self.chance.uniform(0, 0.3))
        elif trouble == WANDERER:
            wanderer = Copier(self.chance.choice(IN_A_GROUP), self._bootstrap, f"{GROUP}-dynamic", None)
            self.await_progress()
            wanderer.kill9()
        else:
            node = self.chance.choice(list(self._nodes()))
            node.kill9()
            node.restart()

    def finish(self) -> int:
        """Read the copies when everything was copied. Returns the number of records. Raises Broken."""
        count = self._feed.finish()
        wanted = [f"did-{number}" for number in range(count)] + [f"did-{END}"]
        with Transactor("confluent-kafka", self._bootstrap) as reader:
            reader.tell("read", "read_committed", SINK, self.partitions, PATIENCE_S)
            while reader.lines.empty():
                for copier in self.copiers:
                    copier.look()
                time.sleep(0.05)
            found = reader.told_values(self.partitions)
        for partition, values in found.items():
            if values != wanted:
                raise Broken(f"partition {partition}: {difference(values, wanted)}")
        return count * self.partitions

    def troubles(self, rounds: int) -> list[str | Copier]:
        """The victim of each round, in random order: each copier, a broker, and in a group an additional member,
        equally often."""
        kinds: list[str | Copier] = [*self.copiers, BROKER, *([] if self._alone else [WANDERER])]
        chosen = (kinds * (rounds // len(kinds) + 1))[:rounds]
        self.chance.shuffle(chosen)
        return chosen

    def close(self) -> None:
        for copier in self.copiers:
            copier.kill9()


def difference(found: list[str], wanted: list[str]) -> str:
    """A description of the difference."""
    if len(set(found)) < len(found):
        return f"copied twice: {sorted({value for value in found if found.count(value) > 1})[:10]}"
    missing = set(wanted) - set(found)
    return f"missing: {sorted(missing)[:10]} ({len(missing)})" if missing else "not in order"


def play(
    bootstrap: str, kinds: Sequence[str], nodes: Callable[[], Sequence[Kafka | KPyBroker]], rounds: int, seed: int
) -> int:
    """Cause this many faults. Returns the number of records that were copied once. Raises Broken."""
    copying = Copying(bootstrap, kinds, nodes, seed)
    try:
        for trouble in copying.troubles(rounds):
            copying.play(trouble)
        return copying.finish()
    finally:
        copying.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=1)
    parser.add_argument("--copiers", choices=("group", "partition"), default="group")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--target", choices=("kpybroker", "kafka"), default="kpybroker")
    arguments = parser.parse_args()
    console = Console()
    kinds = IN_A_GROUP if arguments.copiers == "group" else BY_PARTITION
    try:
        if arguments.nodes == 1:
            with start_target(arguments.target) as broker:
                count = play(broker.bootstrap, kinds, lambda: [broker], arguments.rounds, arguments.seed)
        else:
            with Cluster(arguments.target) as cluster:
                count = play(cluster.bootstrap, kinds, lambda: cluster.brokers, arguments.rounds, arguments.seed)
    except Broken as broken:
        console.print(f"[red]broken[/red] with seed {arguments.seed}: {broken}")
        return 1
    console.print(f"{arguments.rounds} faults, seed {arguments.seed}: {count:,} records copied, each once, in order.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
