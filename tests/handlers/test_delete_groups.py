"""Tests DeleteGroups over a socket, at every version."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import delete_groups as rpc
from kpybroker.wire.rpc import list_groups
from tests.conftest import WithBroker
from tests.handlers.grouping import commit, committed, coordinator, member

API = api_table.by_name["DeleteGroups"]


def test_every_version_deletes_empty_groups(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        (told,) = (await peer.ask("DeleteGroups", rpc.Request(groups_names=["g"]))).results
        assert (told.group_id, told.error_code) == ("g", ErrorCode.NOT_COORDINATOR)
        await coordinator(peer, "t")
        await member(peer, "live")
        for version in range(API.min, API.max + 1):
            await commit(peer, "g")
            request = rpc.Request(groups_names=["g", "live", "missing", "g"])
            reply = await peer.ask("DeleteGroups", request, version=version)
            assert [(each.group_id, each.error_code) for each in reply.results] == [
                ("g", 0),
                ("live", ErrorCode.NON_EMPTY_GROUP),
                ("missing", ErrorCode.GROUP_ID_NOT_FOUND),
            ]
            assert await committed(peer, "g") == -1
        left = (await peer.ask("ListGroups", list_groups.Request())).groups
        assert [each.group_id for each in left] == ["live"]

    with_broker(scenario)
