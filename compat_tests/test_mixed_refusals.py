"""Tests that a kpybroker node which does not fit into a running cluster of Apache Kafka refuses to start, names the
reason, and changes nothing, while the cluster serves on; and that a cluster of kpybroker refuses a node of Apache Kafka
that does not fit."""

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
from oracle.kafka import CLUSTER_ID
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


def refusal(cluster: Cluster, **settings: str | None) -> str:
    """Start NODE as a kpybroker node. Returns the reason why it ends, after a check that its directory is as it was."""
    before = contents(cluster.nodes[NODE].data)
    told = end_of_start(cluster, **settings)
    assert contents(cluster.nodes[NODE].data) == before
    return told


def end_of_start(cluster: Cluster, **settings: str | None) -> str:
    """Start NODE as a kpybroker node, without the settings that are None, which does not succeed. Returns the last line
    of its output."""
    cluster.become(KPYBROKER, NODE)
    changed = {**cluster.nodes[NODE].properties, **settings}
    cluster.nodes[NODE].properties = {name: text for name, text in changed.items() if text is not None}
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


def change_properties(cluster: Cluster, name: str, value: str, node_id: int = NODE) -> None:
    """Change a line of the node's meta.properties."""
    file = cluster.nodes[node_id].data / "meta.properties"
    file.write_text(re.sub(f"^{name}=.*$", f"{name}={value}", file.read_text(), flags=re.MULTILINE))


@of_tomorrow
def test_a_newer_metadata_version(cluster: Cluster) -> None:
    """On the directory of a node that had it, and on an empty one."""
    named = "metadata.version is at level 31, but only 30 is supported"
    told = refusal(cluster)
    assert named in told
    assert told.endswith("Nothing was changed")
    shutil.rmtree(cluster.nodes[NODE].data)
    told = refusal(cluster)
    assert f"this node cannot join the cluster: {named}" in told
    assert "downgrade --release-version 4.3" in told
    check_that_it_serves_on(cluster)


@of_today
def test_a_directory_of_another_cluster_or_node(cluster: Cluster) -> None:
    """Whether the settings have the id of the cluster or not. Also on an empty directory, whose settings have the id of
    another cluster."""
    file = cluster.nodes[NODE].data / "meta.properties"
    before = file.read_bytes()
    for name, value, reason in (
        ("cluster.id", "x" * 22, "belongs to cluster xxxxxxxxxxxxxxxxxxxxxx, and this is cluster"),
        ("node.id", "7", f"belongs to node 7, and this is node {NODE}"),
    ):
        change_properties(cluster, name, value)
        assert reason in refusal(cluster)
        file.write_bytes(before)
    change_properties(cluster, "cluster.id", "x" * 22)
    told = refusal(cluster, **{"kpybroker.cluster.id": None})
    assert f"belongs to cluster {'x' * 22}, but the controllers at " in told
    assert f"belong to cluster {CLUSTER_ID}; name the controllers" in told
    file.write_bytes(before)
    change_properties(cluster, "directory.id", directory_id(cluster, 1))
    assert "another broker is registered with the same data directory" in end_of_start(cluster)
    shutil.rmtree(cluster.nodes[NODE].data)
    told = refusal(cluster, **{"kpybroker.cluster.id": "x" * 22})
    assert f"would belong to cluster {'x' * 22}, but the controllers at " in told
    assert f"belong to cluster {CLUSTER_ID}; set kpybroker.cluster.id" in told
    check_that_it_serves_on(cluster)


@pytest.fixture
def of_kpybroker() -> Iterator[Cluster]:
    """A controller and a broker of kpybroker."""
    with Cluster(KPYBROKER, brokers=1, controllers=1, jvm=("-XX:TieredStopAtLevel=1",)) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("cluster.id", "x" * 22), "INCONSISTENT_CLUSTER_ID"),
        (("directory.id", None), "unable to register with the controller quorum"),
    ],
    ids=["cluster", "directory"],
)
def test_a_node_of_apache_kafka_that_does_not_fit(
    of_kpybroker: Cluster, change: tuple[str, str | None], reason: str
) -> None:
    """On the directory of another cluster, and on a copy of the directory of a running broker."""
    cluster = of_kpybroker
    node = cluster.nodes[cluster.add_broker(KAFKA)]
    node.prepare()
    name, value = change
    change_properties(cluster, name, value or directory_id(cluster, 1), node.node_id)
    node.properties["initial.broker.registration.timeout.ms"] = "5000"
    with pytest.raises(NotStarted):
        node.start()
    assert reason in node.output.read_text()
    admin = AdminClient({"bootstrap.servers": cluster.nodes[1].bootstrap, **QUIET})
    admin.create_topics([NewTopic(TOPIC, 1, 1)], operation_timeout=30)[TOPIC].result(30)
    assert set(admin.list_topics(timeout=10).brokers) == {1}
