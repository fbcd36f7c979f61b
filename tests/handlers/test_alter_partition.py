"""Tests AlterPartition over a socket, at every version."""

from __future__ import annotations

from typing import Any

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import alter_partition as rpc
from kpybroker.wire.rpc import create_topics
from tests.conftest import WithBroker
from tests.handlers.strangers import Stranger, live_stranger

pytestmark = pytest.mark.slow

API = api_table.by_name["AlterPartition"]


def proposal(node: Node, stranger: Stranger, members: list[int], **facts: Any) -> rpc.Request:
    """A request in which this node, as the leader, proposes an ISR for t-0."""
    topic = node.broker.metadata.image.topics["t"]
    epochs = {node.broker.node_id: node.broker.membership.epoch, stranger.node_id: stranger.epoch}
    wanted = {
        "partition_index": 0,
        "leader_epoch": topic.partitions[0].leader_epoch,
        "partition_epoch": topic.partitions[0].partition_epoch,
        "new_isr": members,
        "new_isr_with_epochs": [rpc.BrokerState(broker_id=each, broker_epoch=epochs[each]) for each in members],
        **facts,
    }
    topics = [rpc.TopicData(topic_id=topic.id, partitions=[rpc.PartitionData(**wanted)])]
    return rpc.Request(broker_id=node.broker.node_id, broker_epoch=node.broker.membership.epoch, topics=topics)


async def make_topic(peer: Peer, *replicas: int) -> None:
    assigned = create_topics.CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))
    topic = create_topics.CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=[assigned])
    told = await peer.ask("CreateTopics", create_topics.Request(topics=[topic]))
    assert told.topics[0].error_code == 0


def test_every_version_shrinks_and_expands(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        async with live_stranger(node) as stranger:
            await make_topic(peer, 1, 2)
            for version in range(API.min, API.max + 1):
                for members in ([1], [1, 2]):
                    request = proposal(node, stranger, members)
                    told = await stranger.peer.ask("AlterPartition", request, version=version)
                    (answer,) = told.topics[0].partitions
                    now = node.broker.metadata.image.topics["t"].partitions[0]
                    assert (told.error_code, answer.error_code) == (0, 0)
                    assert (answer.isr, answer.partition_epoch) == (members, now.partition_epoch)
                    assert now.isr == tuple(members)

    with_broker(scenario)


def test_refusals_are_per_partition(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        async with live_stranger(node) as stranger:
            await make_topic(peer, 1, 2)
            for facts, code in (
                ({"leader_epoch": 9}, ErrorCode.NOT_CONTROLLER),
                ({"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
                ({"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
                ({"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
                (
                    {"new_isr_with_epochs": [rpc.BrokerState(broker_id=2, broker_epoch=stranger.epoch)]},
                    ErrorCode.INVALID_REQUEST,
                ),
                (
                    {
                        "new_isr_with_epochs": [
                            rpc.BrokerState(broker_id=1, broker_epoch=node.broker.membership.epoch),
                            rpc.BrokerState(broker_id=2, broker_epoch=stranger.epoch - 1),
                        ]
                    },
                    ErrorCode.INELIGIBLE_REPLICA,
                ),
            ):
                told = await stranger.peer.ask("AlterPartition", proposal(node, stranger, [1], **facts))
                assert told.topics[0].partitions[0].error_code == code, facts
            await stranger.beat(want_fence=True)
            told = await stranger.peer.ask("AlterPartition", proposal(node, stranger, [1, 2]))
            assert told.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA, "it is fenced (KIP-841)"
            assert node.broker.metadata.image.topics["t"].partitions[0].isr == (1,)

    with_broker(scenario)
