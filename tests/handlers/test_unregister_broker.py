"""Tests UnregisterBroker over a socket."""

from __future__ import annotations

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire.rpc import unregister_broker as rpc
from tests.conftest import WithBroker
from tests.handlers.strangers import live_stranger
from tests.handlers.test_alter_partition import make_topic


@pytest.mark.slow
def test_an_unregistered_broker_leads_nothing(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        async with live_stranger(node) as stranger:
            await make_topic(peer, 2, 1)
            told = await peer.ask("UnregisterBroker", rpc.Request(broker_id=2), version=0)
            assert told.error_code == 0
            assert list(node.broker.metadata.image.brokers) == [1]
            now = node.broker.metadata.image.topics["t"].partitions[0]
            assert (now.leader, now.isr, now.replicas) == (1, (1,), (2, 1))
            assert (await stranger.beat()).error_code == ErrorCode.STALE_BROKER_EPOCH
            again = await peer.ask("UnregisterBroker", rpc.Request(broker_id=2))
            assert again.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED

    with_broker(scenario)
