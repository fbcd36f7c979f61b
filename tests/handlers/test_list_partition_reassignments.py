"""Tests ListPartitionReassignments over a socket."""

from __future__ import annotations

import pytest

from kpybroker.client.peer import Peer
from kpybroker.server.node import Node
from kpybroker.wire.rpc import list_partition_reassignments as rpc
from tests.conftest import WithBroker
from tests.handlers.strangers import live_stranger
from tests.handlers.test_alter_partition import make_topic
from tests.handlers.test_alter_partition_reassignments import code_of, moved


@pytest.mark.slow
def test_reassignments_in_progress_are_listed(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        async with live_stranger(node):
            await make_topic(peer, 1)
            every = rpc.Request(topics=None)
            assert (await peer.ask("ListPartitionReassignments", every)).topics == []
            await code_of(peer, moved([2]))
            named = rpc.ListPartitionReassignmentsTopics(name="t", partition_indexes=[0, 5])
            for asked in (every, rpc.Request(topics=[named])):
                told = await peer.ask("ListPartitionReassignments", asked, version=0)
                assert [topic.name for topic in told.topics] == ["t"]
                (shown,) = told.topics[0].partitions
                assert (shown.partition_index, shown.replicas) == (0, [2, 1])
                assert (shown.adding_replicas, shown.removing_replicas) == ([2], [1])
            other = rpc.ListPartitionReassignmentsTopics(name="nosuch", partition_indexes=[0])
            assert (await peer.ask("ListPartitionReassignments", rpc.Request(topics=[other]))).topics == []

    with_broker(scenario)
