"""Tests the elections of an active controller of one kind among brokers of both kinds, when no replica is in sync: of
an eligible leader replica (KIP-966), and of a replica that lacks records, if the topic allows it."""

from __future__ import annotations

import re

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.changing import until
from compat_tests.rolling import QUIET
from compat_tests.rolling_rounds import files_of
from oracle.cluster import FIRST_CONTROLLER, Cluster
from oracle.kafka import QUICK_JVM
from oracle.takeover import EXIT_CODES, KAFKA, KPYBROKER

TOPIC = "t"
FIRST, LAST = 1, 2
"""The broker that leaves first, and the one that is left."""
SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "2000",
}
OTHER = {KAFKA: KPYBROKER, KPYBROKER: KAFKA}
KINDS = [(KPYBROKER, KAFKA), (KPYBROKER, KPYBROKER), (KAFKA, KAFKA), (KAFKA, KPYBROKER)]
"""Of the controller, and of the broker that leaves first."""


def mixed(controller: str, first: str) -> Cluster:
    """A controller and two brokers of different kinds."""
    cluster = Cluster(KAFKA, brokers=2, controllers=1, properties=SETTINGS, jvm=QUICK_JVM)
    for node in cluster.nodes.values():
        node.prepare()
    cluster.become(controller, FIRST_CONTROLLER)
    cluster.become(first, FIRST)
    cluster.become(OTHER[first], LAST)
    return cluster


def create(cluster: Cluster, **config: str) -> None:
    """A topic with one partition, whose replicas are in sync."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    topic = NewTopic(TOPIC, 1, replica_assignment=[[FIRST, LAST]], config=settings)
    admin.create_topics([topic], operation_timeout=30)[TOPIC].result(30)
    cluster.await_in_sync(TOPIC)


def write(cluster: Cluster, *values: str, acks: str = "all") -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": acks, **QUIET})
    refused: list[object] = []
    for value in values:
        producer.produce(TOPIC, value.encode(), on_delivery=lambda error, _: error and refused.append(error))
    assert producer.flush(60) == 0
    assert not refused


def read(cluster: Cluster, count: int) -> list[str]:
    """The first records of the partition."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader", **QUIET})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[str] = []
    until(
        lambda: found.extend(each.value().decode() for each in consumer.consume(100, 1)) or len(found) >= count, "read"
    )
    consumer.close()
    return found


def leader_is(cluster: Cluster, node_id: int) -> None:
    until(lambda: cluster.leader_of(TOPIC, 0) == node_id, f"{node_id} leads")


def check_replicas(cluster: Cluster) -> None:
    """Stop all nodes. Both replicas have the same bytes."""
    cluster.await_in_sync(TOPIC)
    cluster.stop()
    one, other = (files_of(cluster.nodes[node_id].data, TOPIC, 0) for node_id in (FIRST, LAST))
    assert one
    assert one == other


@pytest.mark.parametrize(
    ("controller", "first"), [KINDS[0], *(pytest.param(*each, marks=pytest.mark.full) for each in KINDS[1:])]
)
def test_an_eligible_replica_is_elected_although_the_last_in_sync_one_is_down(controller: str, first: str) -> None:
    """A record that only the last replica has was not acknowledged to those who wait for all."""
    with mixed(controller, first) as cluster:
        create(cluster, min_insync_replicas="2")
        write(cluster, "a", "b")
        assert cluster.nodes[FIRST].stop() == EXIT_CODES[first]
        leader_is(cluster, LAST)
        write(cluster, "lost", acks="1")
        told = cluster.tool("kafka-topics", "--describe", "--topic", TOPIC).ok()
        assert re.search(rf"Isr: {LAST}\s+Elr: {FIRST}\s", told), told
        assert cluster.nodes[LAST].stop() == EXIT_CODES[OTHER[first]]
        cluster.nodes[FIRST].start()
        leader_is(cluster, FIRST)
        cluster.nodes[LAST].start()
        cluster.await_in_sync(TOPIC)
        write(cluster, "c")
        assert read(cluster, 3) == ["a", "b", "c"]
        check_replicas(cluster)


@pytest.mark.full
@pytest.mark.parametrize(("controller", "first"), KINDS)
def test_an_unclean_election_loses_the_same_records_on_both(controller: str, first: str) -> None:
    with mixed(controller, first) as cluster:
        create(cluster, min_insync_replicas="1", unclean_leader_election_enable="true")
        write(cluster, "a")
        cluster.nodes[FIRST].kill9()
        leader_is(cluster, LAST)
        write(cluster, "lost", "lost too")
        cluster.nodes[LAST].kill9()
        cluster.nodes[FIRST].start()
        leader_is(cluster, FIRST)
        write(cluster, "b")
        cluster.nodes[LAST].start()
        cluster.await_in_sync(TOPIC)
        write(cluster, "c")
        assert read(cluster, 3) == ["a", "b", "c"]
        check_replicas(cluster)
