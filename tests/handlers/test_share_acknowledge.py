"""Tests ShareAcknowledge over a socket, and the state that a restarted broker has stored of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from tests.conftest import WithBroker
from tests.handlers.sharing import (
    ACCEPT,
    AT_ONCE,
    REJECT,
    RELEASE,
    acknowledge,
    codes,
    configure,
    fetch,
    joined,
    ranges,
    started,
    topic,
)
from tests.serving import dialled, serving

API = api_table.by_name["ShareAcknowledge"]


def test_every_version_acknowledges(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await topic(peer)
        for version in range(API.min, API.max + 1):
            group = f"g{version}"
            await configure(peer, group, auto_offset_reset="earliest")
            await joined(peer, group)
            await fetch(peer, topic_id, 0, group_id=group)
            told = await acknowledge(peer, topic_id, 1, (0, 9, ACCEPT), group_id=group, version=version)
            assert (told.error_code, codes(told)) == (0, [0])
            told = await acknowledge(peer, topic_id, 2, (0, 11, REJECT), group_id=group, version=version)
            assert codes(told) == [0], "offsets below the start are omitted"
            assert (await acknowledge(peer, topic_id, 9, group_id=group, version=version)).error_code == (
                ErrorCode.INVALID_SHARE_SESSION_EPOCH
            )

    with_broker(scenario, AT_ONCE)


def test_only_the_holder_acknowledges(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await started(peer)
        await fetch(peer, topic_id, 0)
        async with dialled(node) as other:
            await fetch(other, topic_id, 0, member_id="n", max_wait_ms=0)
            told = await acknowledge(other, topic_id, 1, (0, 0, ACCEPT), member_id="n")
            assert codes(told) == [ErrorCode.INVALID_RECORD_STATE]
        assert codes(await acknowledge(peer, topic_id, 1, (0, 0, ACCEPT))) == [0]

    with_broker(scenario, AT_ONCE)


def test_the_last_request_of_a_session_releases(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await started(peer)
        await fetch(peer, topic_id, 0)
        assert codes(await acknowledge(peer, topic_id, -1, (0, 4, ACCEPT))) == [0]
        assert (await acknowledge(peer, topic_id, -1)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        assert ranges(await fetch(peer, topic_id, 0)) == [(5, 19, 2)]

    with_broker(scenario, AT_ONCE)


def test_a_restarted_broker_knows_what_was_acknowledged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, AT_ONCE) as node, dialled(node) as peer:
            topic_id = await started(peer)
            await fetch(peer, topic_id, 0)
            await acknowledge(peer, topic_id, 1, (0, 2, ACCEPT), (3, 4, RELEASE), (8, 8, ACCEPT), (12, 12, REJECT))
        async with serving(tmp_path, AT_ONCE) as node, dialled(node) as peer:
            found = ranges(await fetch(peer, topic_id, 0))
            offsets = {offset for first, last, _ in found for offset in range(first, last + 1)}
            assert offsets == set(range(3, 20)) - {8, 12}

    asyncio.run(scenario())
