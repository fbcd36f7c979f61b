"""Tests LeaveGroup over a socket, at every version."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import leave_group as rpc
from tests.conftest import WithBroker
from tests.handlers.grouping import coordinator, member

API = api_table.by_name["LeaveGroup"]


def leaving(group: str, *member_ids: str) -> rpc.Request:
    members = [rpc.MemberIdentity(member_id=each) for each in member_ids]
    return rpc.Request(group_id=group, member_id=member_ids[0], members=members)


def test_a_member_leaves_with_every_version(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        for version in range(API.min, API.max + 1):
            group = f"v{version}"
            known = await member(peer, group)
            reply = await peer.ask("LeaveGroup", leaving(group, known), version=version)
            assert reply.error_code == 0
            assert [each.member_id for each in reply.members] == ([known] if version >= 3 else [])
            assert node.broker.coordinators.groups.runner(group).machine.kinds["classic"].groups[group].members == {}  # type: ignore[attr-defined]

    with_broker(scenario)


def test_from_v3_each_member_has_its_own_code(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for version in range(API.min, API.max + 1):
            reply = await peer.ask("LeaveGroup", leaving("g", "who"), version=version)
            assert reply.error_code == ErrorCode.NOT_COORDINATOR
            reply = await peer.ask("LeaveGroup", leaving("", "who"), version=version)
            assert reply.error_code == ErrorCode.INVALID_GROUP_ID
        await coordinator(peer)
        known = await member(peer, "g")
        for version in range(API.min, API.max + 1):
            for group in ("g", "missing"):
                reply = await peer.ask("LeaveGroup", leaving(group, "who"), version=version)
                of_member = [each.error_code for each in reply.members] if version >= 3 else [reply.error_code]
                assert of_member == [ErrorCode.UNKNOWN_MEMBER_ID]
                assert version < 3 or reply.error_code == 0
        reply = await peer.ask("LeaveGroup", leaving("g", "who", known, known), version=5)
        assert [each.error_code for each in reply.members] == [25, 0, 25]

    with_broker(scenario)
