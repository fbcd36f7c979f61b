"""Tests Heartbeat over a socket, at every version."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import heartbeat as rpc
from tests.conftest import WithBroker
from tests.handlers.grouping import coordinator, joining, member

API = api_table.by_name["Heartbeat"]


def test_every_version_returns_the_state_of_the_member(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        beat = rpc.Request(group_id="g", member_id="who", generation_id=1)
        assert (await peer.ask("Heartbeat", beat)).error_code == ErrorCode.NOT_COORDINATOR
        await coordinator(peer)
        known = await member(peer, "g")
        for version in range(API.min, API.max + 1):
            for group, member_id, generation, code in (
                ("g", known, 1, ErrorCode.NONE),
                ("g", known, 2, ErrorCode.ILLEGAL_GENERATION),
                ("g", "who", 1, ErrorCode.UNKNOWN_MEMBER_ID),
                ("missing", known, 1, ErrorCode.UNKNOWN_MEMBER_ID),
                ("", known, 1, ErrorCode.INVALID_GROUP_ID),
            ):
                beat = rpc.Request(group_id=group, member_id=member_id, generation_id=generation)
                assert (await peer.ask("Heartbeat", beat, version=version)).error_code == code
        beat = rpc.Request(group_id="g", member_id=known, generation_id=1, group_instance_id="nobody's")
        assert (await peer.ask("Heartbeat", beat, version=3)).error_code == ErrorCode.UNKNOWN_MEMBER_ID

    with_broker(scenario)


def test_a_replaced_static_member_is_fenced(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        first = (await peer.ask("JoinGroup", joining("g", instance="i"), version=5)).member_id
        await peer.ask("JoinGroup", joining("g", instance="i"), version=5)
        for version in (3, 4):
            beat = rpc.Request(group_id="g", member_id=first, generation_id=1, group_instance_id="i")
            assert (await peer.ask("Heartbeat", beat, version=version)).error_code == ErrorCode.FENCED_INSTANCE_ID

    with_broker(scenario)
