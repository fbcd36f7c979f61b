"""Tests a cluster of Apache Kafka and kpybroker nodes: three combined nodes of Apache Kafka are replaced one by one by
kpybroker nodes on the same directories, ports and ids, and then back, while clients produce, consume and commit.

docs/mixed-clusters.md is the page for users.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.rolling import PARTITIONS, QUIET, Group, Stream, Transactions, read_all
from oracle.cluster import Cluster
from oracle.takeover import EXIT_CODES, KAFKA, KPYBROKER

LOAD, COPIES = "load", "copies"
INTERNAL = ("__consumer_offsets", "__transaction_state")
SETTINGS = {
    "transaction.state.log.num.partitions": "5",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "auto.create.topics.enable": "false",
}
QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
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
    r"|Coordinator loader is closed"  # it stops while it loads
    r"|The write event Timeout.*requests intended only for the leader"  # it no longer leads the group's partition
    r"|Error processing append operation .*\n.*OutOfOrderSequence"  # it was not the leader yet for an earlier request
    r"|Exception when handling request .*\n.*ErrorMeter"  # it answers a request while it stops
    r"|Exceptionally slow controller event|event queue overloaded|[Tt]imed out|TimeoutException"  # a slow machine
)
"""Refusals that brokers and clients repeat while a leader changes, the end of a node, and effects of a slow machine."""


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Three nodes of Apache Kafka, each a broker and a voter. The parameter: whether the voters are dynamic."""
    with Cluster(KAFKA, grows=request.param, properties=SETTINGS, jvm=QUICK_JVM) as cluster:
        if request.param:
            for node_id in (2, 3):
                add_voter(cluster, node_id)
        yield cluster


def add_voter(cluster: Cluster, node_id: int) -> None:
    file = cluster.nodes[node_id].directory / "server.properties"
    cluster.tool("kafka-metadata-quorum", "--command-config", str(file), "add-controller").ok()


def replace(cluster: Cluster, node_id: int, kind: str, how: str) -> None:
    """Replace a node by one of the other kind, and wait until it is in sync and all others are."""
    node = cluster.nodes[node_id]
    before = node.name
    if how == "kill9":
        node.kill9()
    else:
        assert node.stop() == EXIT_CODES[before]
    cluster.become(kind, node_id)
    cluster.nodes[node_id].start()
    cluster.await_in_sync(LOAD, COPIES, *INTERNAL)
    cluster.await_voters()


def features(cluster: Cluster) -> dict[str, str]:
    """The finalized level of each feature, as Kafka's tool prints it."""
    told = cluster.tool("kafka-features", "describe").ok()
    return dict(re.findall(r"^Feature: (\S+).*FinalizedVersionLevel: (\S+)", told, re.MULTILINE))


def logged_errors(cluster: Cluster) -> list[str]:
    """The errors in the output of all nodes, of either kind, apart from KAFKAS_OWN."""
    found = []
    for node in cluster.nodes.values():
        text = node.output.read_text(errors="replace")
        found += [f"{node.node_id}: {line}" for line in ENTRY.findall(text) if not KAFKAS_OWN.search(line)]
        found += [f"{node.node_id}: {line}" for line in text.splitlines() if re.search(r" (ERROR|CRITICAL) kpy", line)]
        found += [f"{node.node_id}: {line}" for line in text.splitlines() if line.startswith("Traceback")]
    return found


def files_of(data: Path, topic: str, partition: int) -> bytes:
    """All batches of a replica. Where one segment ends and the next begins, the nodes may differ."""
    return b"".join(file.read_bytes() for file in sorted((data / f"{topic}-{partition}").glob("*.log")))


def check_replicas(cluster: Cluster) -> None:
    """After a clean stop, the replicas of each partition have the same bytes."""
    for topic in (LOAD, COPIES):
        for partition in range(PARTITIONS):
            first, *others = (files_of(node.data, topic, partition) for node in cluster.brokers)
            assert first
            assert all(other == first for other in others), f"{topic}-{partition} differs"


@contextlib.contextmanager
def clients(cluster: Cluster) -> Iterator[tuple[Stream, list[Group], Transactions]]:
    bootstrap = cluster.bootstrap
    of_groups: dict[str, dict[str, Any]] = {
        "classic": {"session.timeout.ms": 30_000, "group.instance.id": "one"},
        "consumer": {"group.protocol": "consumer"},
    }
    with contextlib.ExitStack() as running:
        transactions = running.enter_context(Transactions(bootstrap, COPIES, "copier"))
        groups = [Group(bootstrap, LOAD, name, settings) for name, settings in of_groups.items()]
        for group in groups:
            running.enter_context(group)
        stream = running.enter_context(Stream(bootstrap, LOAD))  # it ends first, so that the groups can read it all
        yield stream, groups, transactions


@pytest.mark.parametrize(
    ("cluster", "how"),
    [
        pytest.param(False, "stop", id="static voters", marks=pytest.mark.full),
        pytest.param(True, "stop", id="dynamic voters", marks=pytest.mark.full),
        pytest.param(False, "kill9", id="static voters, killed", marks=pytest.mark.full),
        pytest.param(True, "kill9", id="dynamic voters, killed", marks=pytest.mark.full),
    ],
    indirect=["cluster"],
)
def test_each_node_is_replaced_there_and_back(cluster: Cluster, how: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    wanted = [NewTopic(topic, PARTITIONS, 3) for topic in (LOAD, COPIES)]
    for created in admin.create_topics(wanted, operation_timeout=30).values():
        created.result(30)
    before = features(cluster)
    assert FEATURES.items() <= before.items()
    cluster.await_in_sync(LOAD, COPIES)
    with clients(cluster) as (stream, groups, transactions):
        for kind in (KPYBROKER, KAFKA):
            for node_id in cluster.nodes:
                begun = stream.count
                transactions.open()
                replace(cluster, node_id, kind, how)
                transactions.close()
                assert stream.count > begun
                assert features(cluster) == before
    stored = {topic: read_all(cluster.bootstrap, topic) for topic in (LOAD, COPIES)}
    stream.check(stored[LOAD])
    transactions.check(stored[COPIES])
    for group in groups:
        group.check(stored[LOAD])
    errors = logged_errors(cluster)
    assert not errors, "\n".join(errors)
    assert set(cluster.stop()) == {EXIT_CODES[KAFKA]}
    check_replicas(cluster)
