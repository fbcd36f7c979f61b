"""Tests ListGroups over a socket, at every version."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import list_groups as rpc
from tests.conftest import WithBroker
from tests.handlers.grouping import commit, coordinator, member

API = api_table.by_name["ListGroups"]


def test_every_version_lists_and_filters(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        assert (await peer.ask("ListGroups", rpc.Request())).groups == []
        await coordinator(peer, "t")
        await member(peer, "a")  # one in each partition
        await commit(peer, "b")
        for version in range(API.min, API.max + 1):
            reply = await peer.ask("ListGroups", rpc.Request(), version=version)
            shown = {(each.group_id, each.protocol_type, each.group_state, each.group_type) for each in reply.groups}
            state = ("Stable", "Empty") if version >= 4 else ("", "")
            kind = "classic" if version >= 5 else ""
            assert shown == {("a", "consumer", state[0], kind), ("b", "", state[1], kind)}
        for request, groups in (
            (rpc.Request(states_filter=["sTABLE"]), ["a"]),
            (rpc.Request(states_filter=["Empty", "Dead"]), ["b"]),
            (rpc.Request(types_filter=["Consumer"]), []),
            (rpc.Request(types_filter=["Classic"], states_filter=["Stable"]), ["a"]),
        ):
            assert [each.group_id for each in (await peer.ask("ListGroups", request)).groups] == groups

    with_broker(scenario)
