"""Tests ListTransactions over a socket, at every version."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import list_transactions as rpc
from tests.asking import make
from tests.conftest import WithBroker
from tests.handlers.beginning import add, begin, coordinator

ROW = api_table.by_name["ListTransactions"]


def test_every_version_lists_and_filters(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await coordinator(peer)
        open_one = await begin(peer, "open")
        await begin(peer, "idle")
        await add(peer, open_one, 0, name="open")
        for version in range(ROW.min, ROW.max + 1):
            told = await peer.ask("ListTransactions", rpc.Request(), version=version)
            assert {(each.transactional_id, each.transaction_state) for each in told.transaction_states} == {
                ("open", "Ongoing"),
                ("idle", "Empty"),
            }
        for request, names in (
            (rpc.Request(state_filters=["Ongoing"]), ["open"]),
            (rpc.Request(producer_id_filters=[open_one[0]]), ["open"]),
            (rpc.Request(duration_filter=3_600_000), ["idle"]),
            (rpc.Request(transactional_id_pattern="o.*"), ["open"]),
            (rpc.Request(transactional_id_pattern="pe"), []),
        ):
            told = await peer.ask("ListTransactions", request)
            assert [each.transactional_id for each in told.transaction_states] == names
        told = await peer.ask("ListTransactions", rpc.Request(state_filters=["ongoing", "Empty"]))
        assert told.unknown_state_filters == ["ongoing"]
        assert [each.transactional_id for each in told.transaction_states] == ["idle"]

    with_broker(scenario)


def test_invalid_and_exploding_patterns_are_refused(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        await begin(peer, "a" * 60)
        told = await peer.ask("ListTransactions", rpc.Request(transactional_id_pattern="("))
        assert told.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        told = await peer.ask("ListTransactions", rpc.Request(transactional_id_pattern="(a+)+b"))
        assert (told.error_code, told.transaction_states) == (0, [])

    with_broker(scenario)
