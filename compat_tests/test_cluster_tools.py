"""Tests of Kafka's own tools for clusters, on three nodes of either kind. The quorum grows from one voter to three, and
shrinks again.

The tests share the cluster and run in this order; after each test, all nodes run and all replicas are in sync.
"""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.voters import add, grow, remove
from oracle.cluster import PATIENCE_S, Cluster
from oracle.kafka import CLUSTER_ID, Ran, tool

QUICK = {
    "broker.session.timeout.ms": "3000",
    "min.insync.replicas": "1",
    "auto.leader.rebalance.enable": "false",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.max.bytes": "100000",  # a throttle accepts the first response, whatever its size
}


@pytest.fixture(scope="module")
def cluster(target_name: str) -> Iterator[Cluster]:
    with Cluster(target_name, grows=True, properties=QUICK, jvm=("-XX:TieredStopAtLevel=1",)) as cluster:
        until(lambda: cluster.active_controller() == 1, "node 1 leads")
        yield cluster


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"timed out waiting until {what}"
        time.sleep(0.1)


def at(cluster: Cluster, node_id: int) -> str:
    return f"127.0.0.1:{cluster.nodes[node_id].port}"


def make(cluster: Cluster, name: str, replicas: list[int]) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
    topic = NewTopic(name, 1, replica_assignment=[replicas])
    admin.create_topics([topic], operation_timeout=30)[name].result(30)
    cluster.await_in_sync(name)


def fill(cluster: Cluster, name: str, count: int = 50, size_bytes: int = 1000) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 2})
    for _ in range(count):
        producer.produce(name, b"x" * size_bytes)
    assert producer.flush(60) == 0


# ---- kafka-metadata-quorum


def quorum(cluster: Cluster, *args: str) -> Ran:
    return cluster.tool("kafka-metadata-quorum", *args)


def status(cluster: Cluster) -> dict[str, str]:
    """The output of describe --status, by its labels."""
    return dict(re.findall(r"^(\w+):\s+(.*)$", quorum(cluster, "describe", "--status").ok(), re.MULTILINE))


def voters(cluster: Cluster) -> list[int]:
    return [row["id"] for row in json.loads(status(cluster)["CurrentVoters"])]


def replication(cluster: Cluster) -> dict[int, tuple[str, str]]:
    """Node id -> the directory id and the status that describe --replication prints."""
    lines = quorum(cluster, "describe", "--replication").ok().splitlines()
    names = [name.strip() for name in lines[0].split("\t")]
    rows = [dict(zip(names, (cell.strip() for cell in line.split("\t")), strict=True)) for line in lines[1:]]
    return {int(row["NodeId"]): (row["DirectoryId"], row["Status"]) for row in rows}


def test_one_voter_and_two_observers(cluster: Cluster) -> None:
    told = status(cluster)
    assert told["ClusterId"] == CLUSTER_ID
    assert told["LeaderId"] == "1"
    assert [row["id"] for row in json.loads(told["CurrentVoters"])] == [1]
    until(lambda: {row["id"] for row in json.loads(status(cluster)["CurrentObservers"])} == {2, 3}, "both are seen")
    assert {node_id: row[1] for node_id, row in replication(cluster).items()} == {
        1: "Leader",
        2: "Observer",
        3: "Observer",
    }


def test_controllers_are_added(cluster: Cluster) -> None:
    for node_id in (2, 3):
        grow(cluster, node_id)
    assert voters(cluster) == [1, 2, 3]
    again = add(cluster, 3)
    assert again.code == 1
    assert "DuplicateVoterException" in again.err
    until(lambda: int(status(cluster)["MaxFollowerLag"]) == 0, "all have everything")


def test_the_active_controller_is_removed_and_added_again(cluster: Cluster) -> None:
    leader = cluster.active_controller()
    directory = replication(cluster)[leader][0]
    wrong = remove(cluster, leader, CLUSTER_ID)
    assert wrong.code == 1
    assert "VoterNotFoundException" in wrong.err
    remove(cluster, leader, directory).ok()
    left = [node_id for node_id in (1, 2, 3) if node_id != leader]
    until(lambda: cluster.active_controller() in left, "another one leads")
    until(lambda: voters(cluster) == left, "the voters are known")
    grow(cluster, leader)
    assert voters(cluster) == [1, 2, 3]


def test_controllers_can_be_asked_directly(cluster: Cluster) -> None:
    server = f"127.0.0.1:{cluster.nodes[cluster.active_controller()].seat.controller_port}"
    told = tool("kafka-metadata-quorum", "--bootstrap-controller", server, "describe", "--status").ok()
    assert f"ClusterId:              {CLUSTER_ID}" in told


# ---- kafka-cluster, kafka-features


def test_what_the_cluster_is(cluster: Cluster) -> None:
    assert (
        tool("kafka-cluster", "cluster-id", "--bootstrap-server", at(cluster, 2)).ok() == f"Cluster ID: {CLUSTER_ID}\n"
    )
    lines = tool("kafka-cluster", "list-endpoints", "--bootstrap-server", at(cluster, 1)).ok().splitlines()
    assert {line.split()[0] for line in lines[1:]} == {"1", "2", "3"}
    assert {int(line.split()[2]) for line in lines[1:]} == {node.port for node in cluster.nodes.values()}
    features = {
        row[0]: row[3]
        for row in re.findall(
            r"Feature: (\S+)\s+SupportedMinVersion: (\S+)\s+SupportedMaxVersion: (\S+)\s+FinalizedVersionLevel: (\S+)",
            cluster.tool("kafka-features", "describe").ok(),
        )
    }
    assert features["kraft.version"] == "1"
    assert features["metadata.version"] == "4.3-IV0"


# ---- kafka-reassign-partitions


def reassign(cluster: Cluster, directory: Path, *args: str, **plan: list[int]) -> Ran:
    """Run the tool on a plan: topic -> replicas of its partition 0."""
    moves = [{"topic": topic, "partition": 0, "replicas": replicas} for topic, replicas in plan.items()]
    path = directory / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": moves}))
    return cluster.tool("kafka-reassign-partitions", "--reassignment-json-file", str(path), *args)


def replicas_of(cluster: Cluster, topic: str) -> list[int]:
    return list(cluster.partitions(topic)[topic, 0].replica_nodes)


def test_a_partition_is_moved(cluster: Cluster, tmp_path: Path) -> None:
    make(cluster, "moved", [1, 2])
    fill(cluster, "moved")
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "moved"}]}))
    generate = ("--topics-to-move-json-file", str(topics), "--broker-list", "2,3", "--generate")
    proposed = cluster.tool("kafka-reassign-partitions", *generate).ok()
    assert '"replicas":[1,2]' in proposed.split("Proposed partition reassignment configuration")[0]
    assert sorted(json.loads(proposed.splitlines()[-1])["partitions"][0]["replicas"]) == [2, 3]
    reassign(cluster, tmp_path, "--execute", "--throttle", "10000000", moved=[3, 2]).ok()
    verified = "Reassignment of partition moved-0 is completed."
    until(lambda: verified in reassign(cluster, tmp_path, "--verify", moved=[3, 2]).ok(), "it is moved")
    assert replicas_of(cluster, "moved") == [3, 2]
    cluster.await_in_sync("moved")
    throttles = cluster.tool("kafka-configs", "--describe", "--entity-type", "brokers", "--entity-name", "3").ok()
    assert "replication.throttled.rate" not in throttles, "verify removes the throttles"


def test_a_move_that_would_take_long_is_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    make(cluster, "kept", [1, 2])
    for _ in range(10):
        fill(cluster, "kept", size_bytes=100_000, count=1)
    reassign(cluster, tmp_path, "--execute", "--throttle", "1000", kept=[1, 3]).ok()
    assert "kept-0: replicas: 1,3,2" in cluster.tool("kafka-reassign-partitions", "--list").ok()
    assert "still in progress" in reassign(cluster, tmp_path, "--verify", kept=[1, 3]).ok()
    reassign(cluster, tmp_path, "--cancel", kept=[1, 3]).ok()
    until(lambda: replicas_of(cluster, "kept") == [1, 2], "the replicas are unchanged")
    assert "No partition reassignments found" in cluster.tool("kafka-reassign-partitions", "--list").ok()
    refused = reassign(cluster, tmp_path, "--execute", kept=[1, 9])
    assert refused.code == 1
    assert "9" in refused.out + refused.err


# ---- kafka-topics, kafka-leader-election


def under_replicated(cluster: Cluster) -> set[str]:
    told = cluster.tool("kafka-topics", "--describe", "--under-replicated-partitions").ok()
    return set(re.findall(r"Topic: (\S+)\tPartition", told))


def test_what_a_killed_broker_leaves_behind(cluster: Cluster) -> None:
    make(cluster, "left", [2, 1])
    until(lambda: under_replicated(cluster) == set(), "everything is in sync")
    cluster.nodes[2].kill9()
    try:
        until(lambda: "left" in under_replicated(cluster), "the tool lists the partition")
        until(lambda: cluster.leader_of("left", 0) == 1, "the other broker leads")
    finally:
        cluster.nodes[2].start()
    until(lambda: under_replicated(cluster) == set(), "everything is in sync again")
    elected = elect(cluster, "left", "PREFERRED").ok()
    assert "Successfully completed leader election (PREFERRED) for partitions left-0" in elected
    until(lambda: cluster.leader_of("left", 0) == 2, "it leads again")
    assert "Valid replica already elected for partitions left-0" in elect(cluster, "left", "PREFERRED").ok()


def elect(cluster: Cluster, topic: str, kind: str) -> Ran:
    which = ("--topic", topic, "--partition", "0")
    return cluster.tool("kafka-leader-election", "--election-type", kind, *which)


def test_an_unclean_election_is_made_by_hand(cluster: Cluster) -> None:
    make(cluster, "unclean", [2, 3])
    cluster.nodes[3].kill9()
    try:
        until(lambda: list(cluster.partitions("unclean")["unclean", 0].isr_nodes) == [2], "one replica is in sync")
        fill(cluster, "unclean")
        cluster.nodes[2].kill9()
    finally:
        cluster.nodes[3].start()
    try:
        until(lambda: cluster.active_controller() in (1, 3), "somebody leads")
        until(lambda: cluster.leader_of("unclean", 0) == -1, "no complete replica is left")
        refused = elect(cluster, "unclean", "PREFERRED")
        assert refused.code == 1
        until(lambda: elect(cluster, "unclean", "UNCLEAN").code == 0, "it is elected")
        until(lambda: cluster.leader_of("unclean", 0) == 3, "it leads")
    finally:
        cluster.nodes[2].start()
    cluster.await_in_sync("unclean")


def test_a_stopped_broker_is_unregistered(cluster: Cluster) -> None:
    """This must be the last test, because the broker registers again only at its next start."""
    grown = [node_id for node_id in (1, 2, 3) if node_id != cluster.active_controller()]
    gone = grown[-1]
    cluster.nodes[gone].kill9()
    server = at(cluster, grown[0])
    until(lambda: gone not in listed(server), "its session has ended")
    tool("kafka-cluster", "unregister", "--bootstrap-server", server, "--id", str(gone)).ok()
    fenced = tool("kafka-cluster", "list-endpoints", "--include-fenced-brokers", "--bootstrap-server", server).ok()
    assert str(gone) not in {line.split()[0] for line in fenced.splitlines()[1:]}
    cluster.nodes[gone].start()
    until(lambda: gone in listed(server), "it is back")


def listed(server: str) -> set[int]:
    told = tool("kafka-cluster", "list-endpoints", "--bootstrap-server", server).ok()
    return {int(line.split()[0]) for line in told.splitlines()[1:]}
