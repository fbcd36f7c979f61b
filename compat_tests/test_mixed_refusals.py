"""Tests that a kpybroker node which does not fit into a running cluster of Apache Kafka refuses to start, names the
reason, and changes nothing, while the cluster serves on."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.rolling import QUIET
from compat_tests.voters import directory_id
from oracle.cluster import Cluster
from oracle.takeover import KAFKA, KPYBROKER
from oracle.target import NotStarted

TOPIC = "t"
NODE = 2
"""The broker that is replaced."""
SETTINGS = {
    "default.replication.factor": "2",
    "min.insync.replicas": "1",
}
NEWER = {"unstable.feature.versions.enable": "true"}
"""With this setting, `kafka-storage format` of Apache Kafka 4.3.1 finalizes 4.4-IV0, which it does not support yet."""


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A controller and two brokers of Apache Kafka, with these properties; broker NODE is stopped."""
    properties = SETTINGS | request.param
    with Cluster(KAFKA, brokers=2, controllers=1, properties=properties, jvm=("-XX:TieredStopAtLevel=1",)) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        admin.create_topics([NewTopic(TOPIC, 1, 2)], operation_timeout=30)[TOPIC].result(30)
        cluster.await_in_sync(TOPIC)
        cluster.nodes[NODE].stop()
        yield cluster


of_today = pytest.mark.parametrize("cluster", [{}], indirect=True, ids=["4.3-IV0"])
of_tomorrow = pytest.mark.parametrize("cluster", [NEWER], indirect=True, ids=["4.4-IV0"])


def contents(path: Path) -> dict[str, bytes]:
    files = (file for file in path.rglob("*") if file.is_file() and file.name != ".lock")
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def refusal(cluster: Cluster) -> str:
    """Start NODE as a kpybroker node. Returns the reason why it ends, after a check that its directory is as it was."""
    before = contents(cluster.nodes[NODE].data)
    told = end_of_start(cluster)
    assert contents(cluster.nodes[NODE].data) == before
    return told


def end_of_start(cluster: Cluster) -> str:
    """Start NODE as a kpybroker node, which does not succeed. Returns the last line of its output."""
    cluster.become(KPYBROKER, NODE)
    with pytest.raises(NotStarted) as refused:
        cluster.nodes[NODE].start()
    return str(refused.value).rstrip().splitlines()[-1]


def check_that_it_serves_on(cluster: Cluster) -> None:
    """Records are acknowledged, and NODE is in sync again as a node of Apache Kafka."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", **QUIET})
    producer.produce(TOPIC, b"x")
    assert producer.flush(30) == 0
    cluster.become(KAFKA, NODE)
    cluster.nodes[NODE].start()
    cluster.await_in_sync(TOPIC)


def change_properties(cluster: Cluster, name: str, value: str) -> None:
    """Change a line of the node's meta.properties."""
    file = cluster.nodes[NODE].data / "meta.properties"
    file.write_text(re.sub(f"^{name}=.*$", f"{name}={value}", file.read_text(), flags=re.MULTILINE))


@of_tomorrow
def test_a_newer_metadata_version(cluster: Cluster) -> None:
    """On the directory of a node that had it, and on an empty one."""
    named = "metadata.version is at level 31, but only 30 is supported"
    told = refusal(cluster)
    assert named in told
    assert told.endswith("Nothing was changed")
    shutil.rmtree(cluster.nodes[NODE].data)
    told = end_of_start(cluster)
    assert f"this node cannot join the cluster: {named}" in told
    assert "downgrade --release-version 4.3" in told
    assert not list(cluster.nodes[NODE].data.glob(f"{TOPIC}-*"))
    shutil.rmtree(cluster.nodes[NODE].data)
    check_that_it_serves_on(cluster)


@of_today
def test_a_directory_of_another_cluster_or_node(cluster: Cluster) -> None:
    file = cluster.nodes[NODE].data / "meta.properties"
    before = file.read_bytes()
    for name, value, reason in (
        ("cluster.id", "x" * 22, "belongs to cluster xxxxxxxxxxxxxxxxxxxxxx, and this is cluster"),
        ("node.id", "7", f"belongs to node 7, and this is node {NODE}"),
    ):
        change_properties(cluster, name, value)
        assert reason in refusal(cluster)
        file.write_bytes(before)
    change_properties(cluster, "directory.id", directory_id(cluster, 1))
    assert "another broker is registered with the same data directory" in end_of_start(cluster)
    file.write_bytes(before)
    check_that_it_serves_on(cluster)
