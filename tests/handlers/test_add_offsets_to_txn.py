"""Tests AddOffsetsToTxn over a socket. The golden vectors show that the error codes are the same as Kafka's."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import add_offsets_to_txn as rpc
from tests.conftest import WithBroker
from tests.handlers.beginning import begin, coordinator, described

ROW = api_table.by_name["AddOffsetsToTxn"]


def test_the_groups_partition_is_added(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        producer_id, epoch = await begin(peer)
        for version in range(ROW.min, ROW.max + 1):
            asked = rpc.Request(transactional_id="x", producer_id=producer_id, producer_epoch=epoch, group_id="a")
            assert (await peer.ask("AddOffsetsToTxn", asked, version=version)).error_code == 0
            asked.producer_epoch -= 1
            fenced = ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH
            assert (await peer.ask("AddOffsetsToTxn", asked, version=version)).error_code == fenced
        (topic,) = (await described(peer)).topics
        assert (topic.topic, topic.partitions) == (
            "__consumer_offsets",
            [node.broker.coordinators.groups.partition_for("a")],
        )

    with_broker(scenario)
