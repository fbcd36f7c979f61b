"""Tests AllocateProducerIds over a socket."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire.rpc import allocate_producer_ids as rpc
from tests.conftest import WithBroker
from tests.handlers.strangers import live_stranger


def test_no_id_is_in_two_blocks(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        given: set[int] = set()
        async with live_stranger(node) as stranger:
            for node_id, epoch in ((2, stranger.epoch), (1, node.broker.membership.epoch), (2, stranger.epoch)):
                asked = rpc.Request(broker_id=node_id, broker_epoch=epoch)
                told = await stranger.peer.ask("AllocateProducerIds", asked, version=0)
                block = range(told.producer_id_start, told.producer_id_start + told.producer_id_len)
                assert (told.error_code, len(block)) == (0, 1000)
                assert not given & set(block)
                given |= set(block)
            assert await node.broker.coordinators.producer_ids.next() not in given
            told = await stranger.peer.ask("AllocateProducerIds", rpc.Request(broker_id=2, broker_epoch=0))
            assert told.error_code == ErrorCode.STALE_BROKER_EPOCH

    with_broker(scenario)
