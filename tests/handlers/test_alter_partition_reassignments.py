"""Tests AlterPartitionReassignments over a socket, at every version."""

from __future__ import annotations

from typing import Any

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import alter_partition_reassignments as rpc
from tests.conftest import WithBroker
from tests.handlers.strangers import live_stranger
from tests.handlers.test_alter_partition import make_topic, proposal

pytestmark = pytest.mark.slow

API = api_table.by_name["AlterPartitionReassignments"]


def moved(replicas: list[int] | None, **facts: Any) -> rpc.Request:
    partition = rpc.ReassignablePartition(partition_index=0, replicas=replicas)
    return rpc.Request(topics=[rpc.ReassignableTopic(name="t", partitions=[partition])], **facts)


async def code_of(peer: Peer, request: rpc.Request, version: int = API.max) -> int:
    told = await peer.ask("AlterPartitionReassignments", request, version=version)
    assert told.error_code == 0
    code: int = told.responses[0].partitions[0].error_code
    return code


def test_a_replica_is_added_and_taken_away(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        async with live_stranger(node) as stranger:
            await make_topic(peer, 1)
            for version in range(API.min, API.max + 1):
                assert await code_of(peer, moved([1, 2]), version) == 0
                now = node.broker.metadata.image.topics["t"].partitions[0]
                assert (now.replicas, now.adding_replicas, now.isr) == ((1, 2), (2,), (1,))
                await stranger.peer.ask("AlterPartition", proposal(node, stranger, [1, 2]))
                now = node.broker.metadata.image.topics["t"].partitions[0]
                assert (now.replicas, now.adding_replicas, now.isr) == ((1, 2), (), (1, 2))
                assert await code_of(peer, moved([1]), version) == 0
                now = node.broker.metadata.image.topics["t"].partitions[0]
                assert (now.replicas, now.removing_replicas, now.isr) == ((1,), (), (1,))

    with_broker(scenario)


def test_a_move_is_cancelled(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        async with live_stranger(node):
            await make_topic(peer, 1)
            assert await code_of(peer, moved([2])) == 0
            now = node.broker.metadata.image.topics["t"].partitions[0]
            assert (now.replicas, now.adding_replicas, now.removing_replicas) == ((2, 1), (2,), (1,))
            assert await code_of(peer, moved(None)) == 0
            now = node.broker.metadata.image.topics["t"].partitions[0]
            assert (now.replicas, now.adding_replicas, now.removing_replicas) == ((1,), (), ())
            assert await code_of(peer, moved(None)) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS

    with_broker(scenario)


def test_refusals_change_nothing(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        async with live_stranger(node):
            await make_topic(peer, 1)
            for request, code in (
                (moved([9]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
                (moved([1, 1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
                (moved([]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
                (moved([1, 2], allow_replication_factor_change=False), ErrorCode.INVALID_REPLICATION_FACTOR),
            ):
                assert await code_of(peer, request) == code
            assert node.broker.metadata.image.topics["t"].partitions[0].replicas == (1,)
            assert await code_of(peer, moved([2], allow_replication_factor_change=False)) == 0

    with_broker(scenario)
