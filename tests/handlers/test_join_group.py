"""Tests JoinGroup over a socket, at every version. The behaviour of groups is tested in tests/groups."""

from __future__ import annotations

import asyncio

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from tests.conftest import WithBroker
from tests.handlers.grouping import SUBSCRIBED_TO_T, coordinator, joining, member
from tests.serving import dialled

API = api_table.by_name["JoinGroup"]


def test_every_version_joins_a_group(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        for version in range(API.min, API.max + 1):
            group = f"v{version}"
            reply = await peer.ask("JoinGroup", joining(group), version=version)
            if version >= 4:
                assert reply.error_code == ErrorCode.MEMBER_ID_REQUIRED
                reply = await peer.ask("JoinGroup", joining(group, reply.member_id), version=version)
            assert (reply.error_code, reply.generation_id, reply.protocol_name) == (0, 1, "range")
            assert reply.leader == reply.member_id
            assert reply.member_id.startswith("kpybroker-")
            assert [(each.member_id, each.metadata) for each in reply.members] == [(reply.member_id, SUBSCRIBED_TO_T)]
            assert reply.protocol_type == ("consumer" if version >= 7 else None)

    with_broker(scenario)


def test_every_version_returns_refusals(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        for version in range(API.min, API.max + 1):
            reply = await peer.ask("JoinGroup", joining("g", "who"), version=version)
            assert (reply.error_code, reply.member_id) == (
                ErrorCode.NOT_COORDINATOR,
                "who",
            )  # an id that was never assigned
            reply = await peer.ask("JoinGroup", joining(""), version=version)
            assert reply.error_code == ErrorCode.INVALID_GROUP_ID
        await coordinator(peer)
        for version in range(API.min, API.max + 1):
            reply = await peer.ask("JoinGroup", joining("g", "who"), version=version)
            assert (reply.error_code, reply.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "who")

    with_broker(scenario)


def test_a_parked_join_is_answered_when_another_connection_completes_the_generation(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        first = await member(peer, "g")
        async with dialled(node) as other:
            parked = asyncio.create_task(other.ask("JoinGroup", joining("g"), version=3))
            await asyncio.wait([parked], timeout=0.05)
            assert not parked.done()
            mine = await peer.ask("JoinGroup", joining("g", first))
            theirs = await parked
            assert mine.generation_id == theirs.generation_id == 2
            assert (len(mine.members), len(theirs.members)) == (2, 0)
            assert theirs.leader == first

    with_broker(scenario)


def test_a_stop_answers_waiting_requests(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        await member(peer, "g")
        async with dialled(node) as other:
            parked = asyncio.create_task(other.ask("JoinGroup", joining("g"), version=3))
            await asyncio.wait([parked], timeout=0.05)
            node.broker.coordinators.groups.close()
            assert (await parked).error_code == ErrorCode.NOT_COORDINATOR

    with_broker(scenario)
