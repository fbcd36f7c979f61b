"""Tests that a broker of one kind follows a controller of the other kind from a snapshot of the metadata (KIP-630),
because the log of the controller begins after its own."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.dumps import METADATA
from compat_tests.rolling import QUIET
from kpybroker.wire.records.batch import whole_batches
from oracle.cluster import FIRST_CONTROLLER, Cluster
from oracle.takeover import KAFKA, KPYBROKER

TOPIC, NODE = "t", 2
WIDE = 200
"""Partitions of a topic that only fills the log."""
PATIENCE_S = 300.0
PROPERTIES = {
    "default.replication.factor": "2",
    "min.insync.replicas": "1",
    "metadata.log.max.record.bytes.between.snapshots": "10000",
    "metadata.max.retention.bytes": "30000",
}
"""Small snapshots, and so little room for them and the log that the beginning of the log is soon deleted. Apache Kafka
looks once a minute."""


def snapshots(data: Path) -> dict[str, int]:
    """The names of the snapshots in a directory, without the one that formatting writes, and their end offsets."""
    ends = {file.name: int(file.name.partition("-")[0]) for file in (data / METADATA).glob("*.checkpoint")}
    return {name: end for name, end in ends.items() if end}


def end_of_log(data: Path) -> int:
    """The end of the metadata log of a stopped broker."""
    last = max((data / METADATA).glob("*.log"))
    batches = whole_batches(last.read_bytes())
    return batches[-1].next_offset if batches else int(last.stem)


def outrun(cluster: Cluster, end: int) -> None:
    """Create topics until the log of the controller begins after `end`: it has deleted a snapshot, and the oldest one
    that it has kept is later."""
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{cluster.nodes[1].seat.port}", **QUIET})
    data, seen = cluster.nodes[FIRST_CONTROLLER].data, set[str]()
    deadline = time.monotonic() + PATIENCE_S
    for number in itertools.count():
        name = f"w{number}"
        admin.create_topics([NewTopic(name, WIDE, 1)], operation_timeout=30)[name].result(30)
        admin.delete_topics([name], operation_timeout=30)[name].result(30)
        now = snapshots(data)
        seen.update(now)
        if seen - now.keys() and min(now.values()) > end:
            return
        assert time.monotonic() < deadline, f"the log of the controller still begins before {end}: {sorted(now)}"


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("is_empty", [True, False], ids=["empty", "old"])
@pytest.mark.parametrize(("leader", "follower"), [(KAFKA, KPYBROKER), (KPYBROKER, KAFKA)], ids=[KAFKA, KPYBROKER])
def test_a_snapshot_of_the_other_kind(leader: str, follower: str, is_empty: bool) -> None:
    """The broker has an old directory of the leader's kind, or an empty one."""
    cluster = Cluster(leader, brokers=2, controllers=1, properties=PROPERTIES, jvm=("-XX:TieredStopAtLevel=1",))
    with cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        admin.create_topics([NewTopic(TOPIC, 1, 2)], operation_timeout=30)[TOPIC].result(30)
        cluster.await_in_sync(TOPIC)
        node = cluster.nodes[NODE]
        node.stop()
        outrun(cluster, end_of_log(node.data))
        if is_empty:
            shutil.rmtree(node.data)
        before = snapshots(node.data)
        cluster.become(follower, NODE)
        cluster.nodes[NODE].start()
        cluster.await_in_sync(TOPIC)
        received = snapshots(node.data).keys() - before.keys()
        assert received & snapshots(cluster.nodes[FIRST_CONTROLLER].data).keys(), "it has a snapshot of the controller"
        admin.create_topics([NewTopic("after", 1, 2)], operation_timeout=30)["after"].result(30)
        cluster.await_in_sync("after")
