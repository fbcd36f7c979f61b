"""Tests of consumers in racks: the leader returns the replica in the consumer's rack, and clients read from it
(KIP-392)."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as Place

from kpybroker.errors import ErrorCode
from kpybroker.wire.rpc import fetch
from oracle.asking import ask
from oracle.cluster import Cluster

TOPIC = "racks"
COUNT = 200
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@pytest.fixture(scope="module")
def cluster(target_name: str) -> Iterator[Cluster]:
    made = Cluster(target_name, properties={"replica.selector.class": RACK_AWARE}, jvm=("-XX:TieredStopAtLevel=1",))
    for node in made.nodes.values():
        node.properties = {**node.properties, "broker.rack": f"rack{node.node_id}"}
    with made as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 3)], operation_timeout=30)[TOPIC].result(30)
        started.await_in_sync(TOPIC)
        producer = Producer({"bootstrap.servers": started.bootstrap, "acks": "all"})
        for value in range(COUNT):
            producer.produce(TOPIC, str(value).encode())
        assert producer.flush(60) == 0
        yield started


def row_of(cluster: Cluster, node_id: int, offset: int, rack: str) -> Any:
    wanted = fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = fetch.Request(
        max_wait_ms=500,
        min_bytes=1,
        session_epoch=-1,
        rack_id=rack,
        topics=[fetch.FetchTopic(topic=TOPIC, partitions=[wanted])],
    )
    told = ask(cluster.nodes[node_id].address, "Fetch", 12, request, fetch.Response)
    return told.responses[0].partitions[0]


def test_the_leader_names_the_replica_and_the_replica_serves(cluster: Cluster) -> None:
    leader = cluster.leader_of(TOPIC, 0)
    for node_id in cluster.nodes:
        row = row_of(cluster, leader, 0, f"rack{node_id}")
        assert row.preferred_read_replica == (-1 if node_id == leader else node_id)
        assert bool(row.records) == (node_id == leader)
        assert row.error_code == 0
    assert row_of(cluster, leader, 0, "nowhere").preferred_read_replica == -1
    follower = next(node_id for node_id in cluster.nodes if node_id != leader)
    deadline = time.monotonic() + 10
    while row_of(cluster, follower, 0, "nowhere").high_watermark < COUNT:
        assert time.monotonic() < deadline
    row = row_of(cluster, follower, 0, f"rack{leader}")
    assert (row.error_code, row.preferred_read_replica, bool(row.records)) == (0, -1, True)
    row = row_of(cluster, follower, COUNT, "nowhere")
    assert (row.error_code, bool(row.records), row.high_watermark) == (0, False, COUNT)
    assert row_of(cluster, follower, COUNT + 1, "nowhere").error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_librdkafka_reads_from_its_rack(cluster: Cluster) -> None:
    leader = cluster.leader_of(TOPIC, 0)
    for node_id in cluster.nodes:
        fetched_from: set[int] = set()

        def note(text: str, seen: set[int] = fetched_from) -> None:
            found = json.loads(text)["topics"].get(TOPIC, {}).get("partitions", {}).get("0")
            if found is not None:
                seen.add(found["broker"])

        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": f"rack{node_id}",
                "client.rack": f"rack{node_id}",
                "auto.offset.reset": "earliest",
                "statistics.interval.ms": 50,
                "stats_cb": note,
            }
        )
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        values: list[int] = []
        deadline = time.monotonic() + 30
        while len(values) < COUNT or node_id not in fetched_from:
            assert time.monotonic() < deadline, (len(values), fetched_from)
            values += [int(message.value()) for message in consumer.consume(500, 0.2) if message.error() is None]
        consumer.close()
        assert values == list(range(COUNT))
        assert fetched_from <= {leader, node_id, -1}


def test_kafka_python_reads_in_its_rack(cluster: Cluster) -> None:
    for node_id in cluster.nodes:
        consumer = KafkaConsumer(
            bootstrap_servers=cluster.bootstrap.split(","),
            client_rack=f"rack{node_id}",
            auto_offset_reset="earliest",
            consumer_timeout_ms=20_000,
        )
        consumer.assign([Place(TOPIC, 0)])
        values = []
        for message in consumer:
            values.append(int(message.value))
            if len(values) == COUNT:
                break
        consumer.close()
        assert values == list(range(COUNT))
