"""Replaces three combined nodes of Apache Kafka, one by one, by kpybroker nodes on the same directories, ports and ids,
and then back, while clients produce, consume, commit and count. Checks that no record is lost, repeated or reordered,
that replicas have the same bytes, and that the nodes log no errors of their own.

`python -m compat_tests.rolling_rounds --rounds 10 --java` runs for a long time, and prints the longest silence of the
clients at each step; the test suite runs one round. With `--to kafka`, each node is replaced by one of its own kind.
docs/mixed-clusters.md is the page for users.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from chaos.logged import logged_errors as counted_errors
from compat_tests.rolling import PARTITIONS, QUIET, Group, Stream, Transactions, read_all
from compat_tests.rolling_java import Copier, Counts
from compat_tests.rolling_shares import STATE, ShareGroup
from compat_tests.rolling_shares import TOPIC as JOBS
from compat_tests.streams_rounds import PARTITIONS as COUNTED_PARTITIONS
from compat_tests.streams_rounds import PROTOCOLS, SINK, SOURCE
from compat_tests.voters import grow
from kpybroker.wire.records.batch import read_records, split
from oracle.cluster import Cluster
from oracle.kafka import QUICK_JVM
from oracle.takeover import EXIT_CODES, KAFKA, KPYBROKER

LOAD, COPIES, JAVA_COPIES = "load", "copies", "java-copies"
INTERNAL = ("__consumer_offsets", "__transaction_state")
WAYS = ("stop", "kill9")
SETTINGS = {
    "transaction.state.log.num.partitions": "5",
    "share.coordinator.state.topic.num.partitions": "5",
    "group.share.min.session.timeout.ms": "15000",
    "group.share.session.timeout.ms": "15000",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "auto.create.topics.enable": "false",
}
FEATURES = {
    "eligible.leader.replicas.version": "1",
    "group.version": "1",
    "metadata.version": "4.3-IV0",
    "share.version": "1",
    "streams.version": "1",
    "transaction.version": "2",
}
"""The levels that Apache Kafka 4.3's `kafka-storage format` finalizes, besides kraft.version."""
ENTRY = re.compile(r"^\[[\d\-: ,]+\] (?:ERROR|FATAL) (.*\n.*)$", re.MULTILINE)
"""An error, with the first line of its stack trace."""
KAFKAS_OWN = re.compile(
    r"Unexpected error handling request .* BrokerHeartbeatRequestData"  # a new leader that is not active yet
    r"|Coordinator loader is closed|Stopped loading records from"  # it stops, or no longer leads, while it loads
    r"|The write event Timeout.*requests intended only for the leader"  # it no longer leads the group's partition
    r"|Error processing append operation .*\n.*OutOfOrderSequence"  # it was not the leader yet for an earlier request
    r"|(?:Exception when|Unexpected error) handling request .*\n.*ErrorMeter"  # it answers a request while it stops
    r"|no such share session found"  # the share consumer's session ended with the broker that had it
    r"|Write request leader epoch is smaller|Unable to perform write state RPC .* epoch in the request is older"
    r"|Failed to write the share group state .*\n.*NotLeaderOrFollower|No share partition found .* while releasing"
    r"|Exceptionally slow controller event|event queue overloaded|[Tt]imed out|TimeoutException"  # a slow machine
)
"""Refusals that brokers and clients repeat while a leader changes, the end of a node, and effects of a slow machine."""


def repeated(place: str, log: bytes) -> int:
    """The number of records of a Stream that are in the log twice.

    Within an epoch of the producer, each number follows the one before. When a leader changes, the first of several
    requests in flight may be refused, and the next one for its sequence number. librdkafka then raises its epoch, and
    sends again what was not acknowledged, which may be stored already (KIP-360). Nodes of one kind cause it, too.
    """
    count = last = newest = 0
    epoch = -1
    for batch in split(memoryview(log)):
        for record in read_records(batch):
            number = int(record.value or b"")
            follows = number == last + 1 or (batch.producer_epoch > epoch and number <= newest)
            assert follows, f"{place}: {number} follows {last} at offset {record.offset}"
            count += number <= newest
            newest = max(newest, number)
            last, epoch = number, batch.producer_epoch
    return count


class Step(NamedTuple):
    """The replacement of a node."""

    node_id: int
    kind: str
    """The node's kind from now on."""
    took_s: float
    """Until every replica was in sync again."""
    silence_s: float
    """The longest time without an acknowledgement for a partition, for librdkafka."""
    java_silence_s: float | None
    """The longest time between two transactions of the Java copier."""
    share_silence_s: float | None
    """The longest time between two confirmed acceptances of the share group."""


@contextlib.contextmanager
def kafka_cluster(*, dynamic: bool, directory: Path | None = None) -> Iterator[Cluster]:
    """Three nodes of Apache Kafka, each a broker and a voter. The voters are static or dynamic."""
    with Cluster(KAFKA, grows=dynamic, properties=SETTINGS, jvm=QUICK_JVM, directory=directory) as cluster:
        for node_id in (2, 3) if dynamic else ():
            grow(cluster, node_id)
        yield cluster


def features(cluster: Cluster) -> dict[str, str]:
    """The finalized level of each feature, as Kafka's tool prints it."""
    told = cluster.tool("kafka-features", "describe").ok()
    return dict(re.findall(r"^Feature: (\S+).*FinalizedVersionLevel: (\S+)", told, re.MULTILINE))


def logged_errors(cluster: Cluster, allowed: re.Pattern[str] = KAFKAS_OWN) -> list[str]:
    """The errors in the output of all nodes, of either kind, apart from those that are allowed."""
    found = []
    for node in cluster.nodes.values():
        text = node.output.read_text(errors="replace")
        found += [f"{node.node_id}: {line}" for line in ENTRY.findall(text) if not allowed.search(line)]
        found += [f"{node.node_id}: {line}" for line in text.splitlines() if re.search(r" (ERROR|CRITICAL) kpy", line)]
        found += [f"{node.node_id}: {line}" for line in text.splitlines() if line.startswith("Traceback")]
    return found


def files_of(data: Path, topic: str, partition: int) -> bytes:
    """All batches of a replica. Where one segment ends and the next begins, the nodes may differ."""
    return b"".join(file.read_bytes() for file in sorted((data / f"{topic}-{partition}").glob("*.log")))


def create_topics(cluster: Cluster, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    counted = {SOURCE: COUNTED_PARTITIONS, SINK: COUNTED_PARTITIONS}
    wanted = [NewTopic(topic, counted.get(topic, PARTITIONS), 3) for topic in topics]
    for created in admin.create_topics(wanted, operation_timeout=30).values():
        created.result(30)
    cluster.await_in_sync(*topics)


class Rolling:
    """The replacements of a cluster's nodes, under load.

    how: one of WAYS. java: the group.protocol of a Kafka Streams application, which then runs beside a copier with the
    Java client; None for clients of librdkafka alone. share: whether a share group runs, too.
    """

    def __init__(self, cluster: Cluster, *, how: str = "stop", java: str | None = None, share: bool = False) -> None:
        self.cluster = cluster
        self.how = how
        self.topics = (LOAD, COPIES) + ((JAVA_COPIES, SOURCE, SINK) if java else ()) + ((JOBS,) if share else ())
        self.internal = (*INTERNAL, STATE) if share else INTERNAL
        create_topics(cluster, *self.topics)
        bootstrap = cluster.bootstrap
        self.transactions = Transactions(bootstrap, COPIES, "copier")
        self.groups = [
            Group(bootstrap, LOAD, "classic", {"session.timeout.ms": 30_000, "group.instance.id": "one"}),
            Group(bootstrap, LOAD, "consumer", {"group.protocol": "consumer"}),
        ]
        self.stream = Stream(bootstrap, LOAD)
        self.copier = None if java is None else Copier(bootstrap, LOAD, JAVA_COPIES)
        self.counts = None if java is None else Counts(bootstrap, cluster.directory, java)
        self.shares = ShareGroup(bootstrap) if share else None

    def play(self, rounds: int = 1, kinds: tuple[str, ...] = (KPYBROKER, KAFKA)) -> Iterator[Step]:
        """Replace each node by one of each kind in turn, and check the records afterwards."""
        before = features(self.cluster)
        assert FEATURES.items() <= before.items()
        with contextlib.ExitStack() as programs:
            if self.copier is not None and self.counts is not None:
                programs.enter_context(self.copier)
                programs.enter_context(self.counts.program)
                self.counts.await_running()
            with self._clients():
                if self.shares is not None:
                    self.shares.await_consuming()
                for kind in kinds * rounds:
                    for node_id in self.cluster.nodes:
                        yield self._step(node_id, kind)
                        assert features(self.cluster) == before
            self._check_records()

    @contextlib.contextmanager
    def _clients(self) -> Iterator[None]:
        """The stream ends first, so that the groups can read it all."""
        clients = [self.transactions, *self.groups, *([] if self.counts is None else [self.counts]), self.stream]
        clients += [] if self.shares is None else self.shares.clients
        with contextlib.ExitStack() as running:
            for client in clients:
                running.enter_context(client)
            yield

    def _step(self, node_id: int, kind: str) -> Step:
        """Replace a node, and wait until it is in sync and all others are. A transaction is open meanwhile."""
        cluster, node = self.cluster, self.cluster.nodes[node_id]
        begun, begun_s = self.stream.count, time.monotonic()
        self.stream.silence.take()
        for silence in (each.silence for each in (self.copier, self.shares) if each is not None):
            silence.take()
        self.transactions.open()
        if self.how == "kill9":
            node.kill9()
        else:
            assert node.stop() == EXIT_CODES[node.name]
        cluster.become(kind, node_id)
        cluster.nodes[node_id].start()
        cluster.await_in_sync(*self.topics, *self.internal)
        cluster.await_voters()
        self.transactions.close()
        assert self.stream.count > begun
        took_s, silence_s = time.monotonic() - begun_s, self.stream.silence.take()
        java_s, share_s = (None if each is None else each.silence.take() for each in (self.copier, self.shares))
        if self.shares is not None:
            self.shares.check_starts()
        return Step(node_id, kind, took_s, silence_s, java_s, share_s)

    def _check_records(self) -> None:
        """Every acknowledged record is stored, once and in order, and every reader has read it once."""
        stored = {topic: read_all(self.cluster.bootstrap, topic) for topic in (LOAD, COPIES)}
        self.stream.check(stored[LOAD])
        self.transactions.check(stored[COPIES])
        for group in self.groups:
            group.check(stored[LOAD])
        if self.copier is not None and self.counts is not None:
            self.copier.check(stored[LOAD])
            self.counts.check()
        if self.shares is not None:
            self.shares.check(read_all(self.cluster.bootstrap, JOBS))

    def check_replicas(self) -> int:
        """Stop all nodes cleanly. The replicas of each partition have the same bytes, and the stream's records are in
        order. Returns how many of them librdkafka has sent again in a new epoch of its producer."""
        repeats = 0
        assert set(self.cluster.stop()) == {EXIT_CODES[self.cluster.kind]}
        for topic in self.topics:
            for partition in range(COUNTED_PARTITIONS if topic in (SOURCE, SINK) else PARTITIONS):
                first, *others = (files_of(node.data, topic, partition) for node in self.cluster.brokers)
                assert first or topic == SINK
                assert all(other == first for other in others), f"{topic}-{partition} differs"
                if topic == LOAD:
                    repeats += repeated(f"{topic}-{partition}", first)
        return repeats


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--how", choices=WAYS, default="stop")
    parser.add_argument("--dynamic", action="store_true", help="voters of KIP-853")
    parser.add_argument("--java", action="store_true", help="also run a Java copier and Kafka Streams")
    parser.add_argument("--protocol", choices=PROTOCOLS, default="classic", help="group.protocol of Kafka Streams")
    parser.add_argument("--share", action="store_true", help="also run a share group")
    parser.add_argument("--to", choices=(KPYBROKER, KAFKA), default=KPYBROKER)
    arguments = parser.parse_args()
    console = Console()
    table = Table("step", "node", "becomes", "in sync after, s", "longest silence, s", "Java's, s", "share group's, s")
    directory = Path(tempfile.mkdtemp(prefix="rolling-"))
    with kafka_cluster(dynamic=arguments.dynamic, directory=directory) as cluster:
        java = arguments.protocol if arguments.java else None
        rolling = Rolling(cluster, how=arguments.how, java=java, share=arguments.share)
        try:
            for number, step in enumerate(rolling.play(arguments.rounds, (arguments.to, KAFKA)), 1):
                times_s = (step.took_s, step.silence_s, step.java_silence_s, step.share_silence_s)
                row = (str(number), str(step.node_id), step.kind, *("" if s is None else f"{s:.1f}" for s in times_s))
                table.add_row(*row)
                console.print(*row)
            if rolling.shares is not None:
                console.print(rolling.shares.summary)
            console.print(f"records repeated in a new producer epoch (KIP-360): {rolling.check_replicas()}")
        except AssertionError as broken:
            console.print(f"[red]broken[/red]; see {directory}: {str(broken)[:2000]}")
            return 1
        finally:
            console.print(table)
        for (kind, error), count in counted_errors(cluster.nodes.values()).most_common():
            console.print(f"{count} times, logged by nodes of {kind}: {error}", markup=False)
        errors = sorted(set(logged_errors(cluster)))
        console.print("\n".join(errors), markup=False)
    shutil.rmtree(directory)
    console.print(f"nothing lost of {rolling.stream.count:,} records; {len(errors)} errors in the logs")
    return min(len(errors), 1)


if __name__ == "__main__":
    sys.exit(main())
