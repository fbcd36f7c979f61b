"""Internal topics have as many replicas as the settings require. Only a single node may have fewer (decisions/0020)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kpybroker.errors import ErrorCode
from kpybroker.topics import OFFSETS_TOPIC, TRANSACTION_TOPIC
from kpybroker.wire.rpc import find_coordinator
from tests.server.clustering import Cluster, dialled, run_cluster

KEY_TYPES = {OFFSETS_TOPIC: 0, TRANSACTION_TOPIC: 1}
FACTORS = {
    OFFSETS_TOPIC: "offsets.topic.replication.factor",
    TRANSACTION_TOPIC: "transaction.state.log.replication.factor",
}
topics = pytest.mark.parametrize("topic", KEY_TYPES)


async def find(cluster: Cluster, topic: str) -> Any:
    """The response of node 1 to FindCoordinator for a group or a transactional id."""
    peer = await dialled(cluster.nodes[1])
    told = await peer.ask(
        "FindCoordinator",
        find_coordinator.Request(key_type=KEY_TYPES[topic], coordinator_keys=["it"]),
    )
    peer.close()
    return told.coordinators[0]


def replicas(cluster: Cluster, topic: str) -> list[set[int]]:
    found = cluster.nodes[1].broker.metadata.image.topics.get(topic)
    return [] if found is None else [set(partition.replicas) for partition in found.partitions]


def fenced(cluster: Cluster) -> set[int]:
    brokers = cluster.nodes[1].broker.metadata.image.brokers
    return {node_id for node_id, broker in brokers.items() if broker.fenced}


@topics
def test_a_cluster_waits_for_the_brokers_it_needs(tmp_path: Path, topic: str) -> None:
    """If the topic were created only on the first broker, the offsets of all groups would be lost with its disk."""

    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2)
        answer = await find(cluster, topic)
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "only 2 broker(s) are registered" in answer.error_message
        assert f"Start more brokers, or set {FACTORS[topic]} on each broker." in answer.error_message
        assert not replicas(cluster, topic)
        await cluster.start(3)
        assert (await find(cluster, topic)).error_code == ErrorCode.NONE
        assert all(on == {1, 2, 3} for on in replicas(cluster, topic))

    run_cluster(tmp_path, play, transaction_state_log_num_partitions="2")


@topics
def test_a_broker_that_is_down_counts(tmp_path: Path, topic: str) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        await cluster.stop(3)
        await cluster.until(lambda: fenced(cluster) == {3}, "node 3 is fenced")
        assert (await find(cluster, topic)).error_code == ErrorCode.NONE
        assert all(on == {1, 2, 3} for on in replicas(cluster, topic))

    run_cluster(tmp_path, play, transaction_state_log_num_partitions="2")


@topics
def test_a_single_controller_uses_the_existing_brokers(tmp_path: Path, topic: str) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2)
        assert (await find(cluster, topic)).error_code == ErrorCode.NONE
        assert all(on == {1, 2} for on in replicas(cluster, topic))

    run_cluster(tmp_path, play, voters=1, transaction_state_log_num_partitions="2")
