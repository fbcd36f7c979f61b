"""Tests that a cluster of Apache Kafka moves to added brokers of kpybroker, and back, while clients produce, consume
and commit: Kafka's tool moves all partitions, and a combined node of Apache Kafka becomes a controller alone."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.changing import until
from compat_tests.rolling import PARTITIONS, QUIET, Group, Stream, Transactions, read_all
from compat_tests.rolling_rounds import COPIES, INTERNAL, KAFKAS_OWN, LOAD, SETTINGS, files_of, logged_errors, repeated
from oracle.cluster import Cluster
from oracle.kafka import QUICK_JVM
from oracle.takeover import EXIT_CODES, KAFKA, KPYBROKER
from oracle.tools import tool

TOPICS = (LOAD, COPIES, *INTERNAL)
REPLICAS = 2
TWO_REPLICAS = {
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
    "transaction.state.log.min.isr": "1",
    "default.replication.factor": "2",
    "min.insync.replicas": "1",
}
ALLOWED = re.compile(rf"{KAFKAS_OWN.pattern}|Expected partition \S+ with topic id \S+ to exist, but it was missing")
"""Apache Kafka logs the latter for each replica that is moved to it, also without kpybroker."""
THROTTLE = "10000000"
OLD = (1, 2, 3)
MOVES = "kafka-reassign-partitions"


def move(cluster: Cluster, *brokers: int) -> None:
    """Move all partitions to these brokers, with a throttle, as `kafka-reassign-partitions --generate` proposes."""
    topics, plan = (cluster.directory / name for name in ("topics.json", "plan.json"))
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": name} for name in TOPICS]}))
    asked = ("--topics-to-move-json-file", str(topics), "--broker-list", ",".join(map(str, brokers)))
    plan.write_text(cluster.tool(MOVES, "--generate", *asked).ok().splitlines()[-1])
    cluster.tool(MOVES, "--execute", "--reassignment-json-file", str(plan), "--throttle", THROTTLE).ok()

    def is_complete() -> bool:
        told = cluster.tool(MOVES, "--verify", "--reassignment-json-file", str(plan)).ok()
        return len(re.findall(r"^Reassignment of partition .* is completed", told, re.MULTILINE)) == len(
            json.loads(plan.read_text())["partitions"]
        )

    until(is_complete, f"all partitions are on {brokers}")
    assert holders(cluster) == set(brokers)
    cluster.await_in_sync(*TOPICS)


def holders(cluster: Cluster) -> set[int]:
    """The brokers that have replicas."""
    return {node_id for row in cluster.partitions(*TOPICS).values() for node_id in row.replica_nodes}


def unregister(cluster: Cluster, node_id: int) -> None:
    tool("kafka-cluster", "unregister", "--bootstrap-server", cluster.bootstrap, "--id", str(node_id)).ok()


def registered(cluster: Cluster) -> set[int]:
    """The brokers that are known, fenced ones included."""
    told = tool("kafka-cluster", "list-endpoints", "--bootstrap-server", cluster.bootstrap, "--include-fenced-brokers")
    return {int(number) for number in re.findall(r"^(\d+) ", told.ok(), re.MULTILINE)}


def restart_as(cluster: Cluster, node_id: int, *, is_broker: bool) -> None:
    """Give a combined node the role of a controller alone, or both roles again."""
    assert cluster.nodes[node_id].stop() == EXIT_CODES[KAFKA]
    cluster.change_role(node_id, is_broker=is_broker)
    cluster.nodes[node_id].start()
    cluster.await_voters()


class Load:
    """The clients that run meanwhile."""

    def __init__(self, cluster: Cluster) -> None:
        self.bootstrap = cluster.bootstrap
        self.transactions = Transactions(self.bootstrap, COPIES, "copier")
        self.groups = [
            Group(self.bootstrap, LOAD, "classic", {"session.timeout.ms": 30_000, "group.instance.id": "one"}),
            Group(self.bootstrap, LOAD, "consumer", {"group.protocol": "consumer"}),
        ]
        self.stream = Stream(self.bootstrap, LOAD)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The stream ends first, so that the groups can read it all."""
        with contextlib.ExitStack() as clients:
            for client in (self.transactions, *self.groups, self.stream):
                clients.enter_context(client)
            until(lambda: all(group.read for group in self.groups), "the groups read")
            yield

    @contextlib.contextmanager
    def during_a_transaction(self) -> Iterator[None]:
        """A transaction is open meanwhile. Records are acknowledged."""
        begun = self.stream.count
        self.transactions.open()
        yield
        self.transactions.close()
        assert self.stream.count > begun

    def check(self) -> None:
        """Every acknowledged record is stored, once and in order, and every reader has read it once."""
        stored = {topic: read_all(self.bootstrap, topic) for topic in (LOAD, COPIES)}
        self.stream.check(stored[LOAD])
        self.transactions.check(stored[COPIES])
        for group in self.groups:
            group.check(stored[LOAD])


def check_files(cluster: Cluster, brokers: Collection[int]) -> None:
    """The replicas of each partition have the same bytes, and the stream's records are in order. A broker without a
    replica has no files of it."""
    placed = cluster.partitions(LOAD, COPIES)
    cluster.stop()
    for topic in (LOAD, COPIES):
        for partition in range(PARTITIONS):
            first, *others = (
                files_of(cluster.nodes[node_id].data, topic, partition)
                for node_id in placed[topic, partition].replica_nodes
            )
            assert first
            assert all(other == first for other in others), f"{topic}-{partition} differs"
            if topic == LOAD:
                repeated(f"{topic}-{partition}", first)
    for node_id in brokers:
        kept = {path.name for path in cluster.nodes[node_id].data.glob("*-*") if path.is_dir()}
        assert not any(re.fullmatch(rf"(?:{LOAD}|{COPIES})-\d+", name) for name in kept), f"{node_id} keeps {kept}"


@pytest.mark.full
@pytest.mark.timeout(900)
def test_partitions_move_to_added_brokers_and_back() -> None:
    with Cluster(KAFKA, properties=SETTINGS | TWO_REPLICAS, jvm=QUICK_JVM) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        for created in admin.create_topics([NewTopic(each, PARTITIONS, REPLICAS) for each in (LOAD, COPIES)]).values():
            created.result(30)
        cluster.await_in_sync(LOAD, COPIES)
        load = Load(cluster)
        with load.running():
            added = [cluster.add_broker(KPYBROKER) for _ in range(REPLICAS)]
            cluster.start()
            with load.during_a_transaction():
                move(cluster, *added)
            with load.during_a_transaction():
                restart_as(cluster, 1, is_broker=False)
                unregister(cluster, 1)
                assert registered(cluster) == {2, 3, *added}
            with load.during_a_transaction():
                restart_as(cluster, 1, is_broker=True)
                until(lambda: registered(cluster) == {*OLD, *added}, "1 is a broker again")
                move(cluster, *OLD)
            with load.during_a_transaction():
                for node_id in added:
                    assert cluster.nodes[node_id].stop() == EXIT_CODES[KPYBROKER]
                    unregister(cluster, node_id)
            assert registered(cluster) == set(OLD)
        load.check()
        errors = logged_errors(cluster, ALLOWED)
        assert not errors, "\n".join(errors)
        check_files(cluster, added)
