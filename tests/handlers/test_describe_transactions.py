"""Tests DescribeTransactions over a socket. The tests of EndTxn cover the other states."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from tests.asking import make
from tests.conftest import WithBroker
from tests.handlers.beginning import add, begin, coordinator, described, end, settled


def test_every_state_is_shown(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await coordinator(peer)
        assert (await described(peer)).error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert (await described(peer, "")).error_code == ErrorCode.INVALID_REQUEST
        who = await begin(peer)
        found = await described(peer)
        assert (found.transaction_state, found.transaction_start_time_ms) == ("Empty", -1)
        assert (found.producer_id, found.producer_epoch, found.transaction_timeout_ms) == (*who, 60_000)
        await add(peer, who, 0)
        found = await described(peer)
        assert found.transaction_state == "Ongoing"
        assert 0 < found.transaction_start_time_ms <= node.broker.world.wall_ms()
        await end(peer, who, True)
        found = await settled(peer)
        assert (found.transaction_state, found.topics) == ("CompleteCommit", [])

    with_broker(scenario)


def test_without_a_coordinator(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        assert (await described(peer)).error_code == ErrorCode.NOT_COORDINATOR

    with_broker(scenario)
