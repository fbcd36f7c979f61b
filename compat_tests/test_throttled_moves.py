"""Tests that kafka-reassign-partitions sets throttles, moves replicas and removes the throttles, and that kafka-topics
prints eligible leader replicas."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from oracle.cluster import Cluster

TOPIC = "moved"


@pytest.fixture
def cluster(target_name: str) -> Iterator[Cluster]:
    with Cluster(target_name, jvm=("-XX:TieredStopAtLevel=1",)) as cluster:
        yield cluster


def settings(cluster: Cluster, *entity: str) -> str:
    return cluster.tool("kafka-configs", "--describe", *entity).ok()


def test_a_throttled_move(cluster: Cluster, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    asked = NewTopic(TOPIC, 1, replica_assignment=[[1, 2]], config={"min.insync.replicas": "1"})
    admin.create_topics([asked], operation_timeout=30)[TOPIC].result(30)
    cluster.await_in_sync(TOPIC)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "batch.size": 20_000})
    for _ in range(300):
        producer.produce(TOPIC, bytes(1000))
    assert producer.flush(60) == 0
    plan = tmp_path / "plan.json"
    moves = [{"topic": TOPIC, "partition": 0, "replicas": [1, 3]}]
    plan.write_text(json.dumps({"version": 1, "partitions": moves}))
    told = cluster.tool(
        "kafka-reassign-partitions", "--execute", "--reassignment-json-file", str(plan), "--throttle", "50000"
    )
    assert "Successfully started partition reassignment" in told.ok()
    throttled = settings(cluster, "--entity-type", "topics", "--entity-name", TOPIC)
    assert "leader.replication.throttled.replicas=0:1,0:2" in throttled
    assert "follower.replication.throttled.replicas=0:3" in throttled
    for node_id in (1, 2, 3):
        broker = settings(cluster, "--entity-type", "brokers", "--entity-name", str(node_id))
        assert "leader.replication.throttled.rate=50000" in broker
        assert "follower.replication.throttled.rate=50000" in broker
    deadline = time.monotonic() + 60
    while True:
        told = cluster.tool("kafka-reassign-partitions", "--verify", "--reassignment-json-file", str(plan))
        if "is completed" in told.ok():
            break
        assert time.monotonic() < deadline, told
        time.sleep(0.2)
    assert "Clearing" in told.out
    assert "throttled" not in settings(cluster, "--entity-type", "topics", "--entity-name", TOPIC)
    for node_id in (1, 2, 3):
        assert "throttled" not in settings(cluster, "--entity-type", "brokers", "--entity-name", str(node_id))
    row = cluster.partitions(TOPIC)[TOPIC, 0]
    assert set(row.replica_nodes) == {1, 3}


def test_eligible_leaders_are_printed(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    asked = NewTopic(TOPIC, 1, replica_assignment=[[1, 2]], config={"min.insync.replicas": "2"})
    admin.create_topics([asked], operation_timeout=30)[TOPIC].result(30)
    cluster.await_in_sync(TOPIC)
    cluster.nodes[2].kill9()
    deadline = time.monotonic() + 60
    while True:
        told = cluster.tool("kafka-topics", "--describe", "--topic", TOPIC).ok()
        if "Isr: 1\tElr: 2" in told:
            break
        assert time.monotonic() < deadline, told
        time.sleep(0.2)
    assert "eligible.leader.replicas.version" in cluster.tool("kafka-features", "describe").ok()
