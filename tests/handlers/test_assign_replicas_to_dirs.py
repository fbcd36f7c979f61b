"""Tests AssignReplicasToDirs over a socket, and the effect in the controller."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire.directory_ids import LOST, UNASSIGNED
from kpybroker.wire.rpc import assign_replicas_to_dirs as rpc
from tests.conftest import WithBroker
from tests.handlers.strangers import Stranger, inner
from tests.handlers.test_alter_partition import make_topic

pytestmark = pytest.mark.slow

A, B, C = (bytes([2, number]) * 8 for number in (1, 2, 3))


@contextlib.asynccontextmanager
async def with_two_directories(node: Node) -> AsyncIterator[Stranger]:
    async with inner(node) as peer:
        stranger = Stranger(peer, node.broker.storage.cluster_id, 2)
        told = await peer.ask("BrokerRegistration", stranger.registration(log_dirs=[A, B]))
        stranger.epoch = told.broker_epoch
        assert not (await stranger.beat()).is_fenced
        yield stranger


async def assign(node: Node, stranger: Stranger, directory: bytes) -> int:
    topic = rpc.TopicData(
        topic_id=node.broker.metadata.image.topics["t"].id, partitions=[rpc.PartitionData(partition_index=0)]
    )
    asked = rpc.Request(
        broker_id=2, broker_epoch=stranger.epoch, directories=[rpc.DirectoryData(id=directory, topics=[topic])]
    )
    told = await stranger.peer.ask("AssignReplicasToDirs", asked)
    assert told.error_code == 0
    code: int = told.directories[0].topics[0].partitions[0].error_code
    return code


def test_a_replica_is_in_the_reported_directory(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        async with with_two_directories(node) as stranger:
            await make_topic(peer, 1, 2)
            before = node.broker.metadata.image.topics["t"].partitions[0]
            assert before.directories[1] == UNASSIGNED
            for directory in (A, B, B):
                assert await assign(node, stranger, directory) == 0
                now = node.broker.metadata.image.topics["t"].partitions[0]
                assert now.directories == (before.directories[0], directory)
                assert (now.leader, now.leader_epoch, now.isr) == (1, before.leader_epoch, (1, 2))
            stale = Stranger(stranger.peer, stranger.cluster_id, 2)
            stale.epoch = stranger.epoch + 1
            asked = rpc.Request(broker_id=2, broker_epoch=stale.epoch)
            told = await stranger.peer.ask("AssignReplicasToDirs", asked)
            assert told.error_code == ErrorCode.STALE_BROKER_EPOCH

    with_broker(scenario)


def test_a_lost_log_is_not_in_sync_and_an_offline_one_comes_back(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        async with with_two_directories(node) as stranger:
            await make_topic(peer, 2)
            await assign(node, stranger, A)

            def now() -> tuple[int, tuple[int, ...]]:
                partition = node.broker.metadata.image.topics["t"].partitions[0]
                return partition.leader, partition.isr + partition.eligible_leader_replicas

            assert now() == (2, (2,))
            await stranger.beat(offline_log_dirs=[A])
            assert node.broker.metadata.image.brokers[2].log_dirs == (B,)
            assert now()[0] == -1
            await stranger.beat(offline_log_dirs=[A])  # a repeated request has no effect
            assert node.broker.metadata.image.brokers[2].log_dirs == (B,)
            assert await assign(node, stranger, B) == 0  # the whole replica was moved there
            assert now() == (2, (2,))
            assert await assign(node, stranger, LOST) == 0
            assert now() == (-1, ())
            assert await assign(node, stranger, B) == 0
            assert now()[1] == ()

    with_broker(scenario)
