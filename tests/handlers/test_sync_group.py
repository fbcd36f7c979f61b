"""Tests SyncGroup over a socket, at every version. The behaviour of groups is tested in tests/groups."""

from __future__ import annotations

import asyncio

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from tests.conftest import WithBroker
from tests.handlers.grouping import coordinator, joining, member, syncing
from tests.serving import dialled

API = api_table.by_name["SyncGroup"]


def test_every_version_returns_the_assignment(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        for version in range(API.min, API.max + 1):
            group = f"v{version}"
            joined = await peer.ask("JoinGroup", joining(group), version=3)
            reply = await peer.ask("SyncGroup", syncing(group, joined.member_id, 1, b"mine"), version=version)
            assert (reply.error_code, reply.assignment) == (0, b"mine")
            said = (reply.protocol_type, reply.protocol_name)
            assert said == (("consumer", "range") if version >= 5 else (None, None))

    with_broker(scenario)


def test_every_version_returns_refusals(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        reply = await peer.ask("SyncGroup", syncing("g", "who", 1))
        assert reply.error_code == ErrorCode.NOT_COORDINATOR
        await coordinator(peer)
        known = await member(peer, "g")
        for version in range(API.min, API.max + 1):
            for asked, code in (
                (syncing("", "who", 1), ErrorCode.INVALID_GROUP_ID),
                (syncing("missing", "who", 1), ErrorCode.UNKNOWN_MEMBER_ID),
                (syncing("g", "who", 1), ErrorCode.UNKNOWN_MEMBER_ID),
                (syncing("g", known, 2), ErrorCode.ILLEGAL_GENERATION),
            ):
                assert (await peer.ask("SyncGroup", asked, version=version)).error_code == code
        unsaid = syncing("g", known, 1)
        unsaid.protocol_name = None
        assert (await peer.ask("SyncGroup", unsaid, version=5)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    with_broker(scenario)


def test_followers_wait_for_their_leader(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await coordinator(peer)
        leader = await member(peer, "g")
        async with dialled(node) as other:
            parked = asyncio.create_task(other.ask("JoinGroup", joining("g"), version=3))
            await asyncio.wait([parked], timeout=0.05)
            await peer.ask("JoinGroup", joining("g", leader))
            follower = (await parked).member_id
            waiting = asyncio.create_task(other.ask("SyncGroup", syncing("g", follower, 2, b"not for me to say")))
            await asyncio.wait([waiting], timeout=0.05)
            assert not waiting.done()
            assert (await peer.ask("SyncGroup", syncing("g", leader, 2, b"all"))).assignment == b"all"
            assert (await waiting).assignment == b""

    with_broker(scenario)
