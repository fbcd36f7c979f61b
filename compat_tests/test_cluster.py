"""Three nodes, of kpybroker or of Apache Kafka, serve clients; one of them is killed, and all acknowledged records can
still be read."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from oracle.cluster import Cluster

TOPIC = "three"


@pytest.fixture(params=[0, 3], ids=["combined", "controllers apart"])
def cluster(request: pytest.FixtureRequest, target_name: str) -> Iterator[Cluster]:
    with Cluster(target_name, controllers=request.param, jvm=("-XX:TieredStopAtLevel=1",)) as cluster:
        yield cluster


def write(cluster: Cluster, values: range) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True})
    refused = []
    for value in values:
        producer.produce(TOPIC, str(value).encode(), on_delivery=lambda error, _: error and refused.append(error))
    assert producer.flush(60) == 0
    assert refused == []


def read(cluster: Cluster, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[int] = []
    while len(found) < count:
        messages = consumer.consume(1000, 30)
        assert messages
        found += [int(message.value()) for message in messages if message.error() is None]
    consumer.close()
    return found


def test_a_killed_leader_loses_no_acknowledged_record(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(TOPIC, 1, 3)], operation_timeout=30)[TOPIC].result(30)
    cluster.await_in_sync(TOPIC)
    write(cluster, range(100))
    leader = cluster.leader_of(TOPIC, 0)
    cluster.nodes[leader].kill9()
    write(cluster, range(100, 200))
    assert cluster.leader_of(TOPIC, 0) != leader
    assert read(cluster, 200) == list(range(200))
    cluster.nodes[leader].restart()
    cluster.await_in_sync(TOPIC)
    assert cluster.active_controller() in cluster.nodes
