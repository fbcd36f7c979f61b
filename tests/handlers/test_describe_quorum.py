"""Tests DescribeQuorum over a socket, sent to the leader itself and to other brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.rpc import describe_quorum as rpc
from tests.conftest import WithBroker
from tests.server.clustering import Cluster, run_cluster


def asked(topic: str = METADATA_TOPIC, index: int = 0) -> rpc.Request:
    partition = rpc.PartitionData(partition_index=index)
    return rpc.Request(topics=[rpc.TopicData(topic_name=topic, partitions=[partition])])


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_quorum_of_one(with_broker: WithBroker, version: int) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        row = (await peer.ask("DescribeQuorum", asked(), version=version)).topics[0].partitions[0]
        assert (row.leader_id, row.leader_epoch, row.high_watermark) == (1, 1, node.broker.quorum.committed)
        assert [(voter.replica_id, voter.log_end_offset) for voter in row.current_voters] == [(1, row.high_watermark)]
        other = (await peer.ask("DescribeQuorum", asked("t"), version=version)).topics[0].partitions[0]
        assert other.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with_broker(scenario)


def test_every_node_returns_the_progress_of_every_replica(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        leader = await cluster.leader()
        for node in cluster.nodes.values():
            host, _, port = node.bootstrap.rpartition(":")
            peer = await Peer.dial(node.broker.world.network, host, int(port))
            await peer.negotiate()
            told = await peer.ask("DescribeQuorum", asked())
            peer.close()
            row = told.topics[0].partitions[0]
            assert row.leader_id == leader
            assert [voter.replica_id for voter in row.current_voters] == [1, 2, 3]
            assert all(voter.log_end_offset >= 0 for voter in row.current_voters)
            assert [(known.node_id, known.listeners[0].port) for known in told.nodes] == sorted(cluster.ports.items())

    run_cluster(tmp_path, play)
