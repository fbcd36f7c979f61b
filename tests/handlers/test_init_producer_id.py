"""Tests that InitProducerId never assigns a producer id twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import init_producer_id
from tests.conftest import WithBroker
from tests.handlers.beginning import begin, coordinator, init
from tests.serving import crashed, dialled, serving

ROW = api_table.by_name["InitProducerId"]
NEW = init_producer_id.Request(transactional_id=None, transaction_timeout_ms=1000)


async def next_id(peer: Peer, version: int = ROW.max) -> int:
    told = await peer.ask("InitProducerId", NEW, version=version)
    assert (told.error_code, told.producer_epoch) == (0, 0)
    return int(told.producer_id)


def test_every_version_assigns_a_new_id(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        ids = [await next_id(peer, version) for version in range(ROW.min, ROW.max + 1)]
        assert len(set(ids)) == len(ids)
        async with dialled(node) as other:
            more = await asyncio.gather(*(next_id(each) for each in (peer, other) * 20))
        assert len({*ids, *more}) == len(ids) + 40

    with_broker(scenario)


def test_a_block_is_not_assigned_twice(tmp_path: Path) -> None:
    """A block is assigned once, even after a clean shutdown or a crash, because it is a record of the metadata log."""

    async def whole() -> None:
        async with serving(tmp_path / "data") as node, dialled(node) as peer:
            first = await next_id(peer)
            crashed(tmp_path / "data", tmp_path / "crashed")
        for directory in ("data", "crashed"):
            async with serving(tmp_path / directory) as node, dialled(node) as peer:
                assert await next_id(peer) > first

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_a_transactional_producer_keeps_its_id_and_gets_the_next_epoch(tmp_path: Path) -> None:
    """Covers a restart with the same directory."""

    async def whole() -> None:
        async with serving(tmp_path / "data") as node, dialled(node) as peer:
            await coordinator(peer)
            found = [await init(peer, version=version) for version in range(ROW.min, ROW.max + 1)]
            assert {told.error_code for told in found} == {0}
            assert [told.producer_epoch for told in found] == list(range(len(found)))
            who = (found[-1].producer_id, found[-1].producer_epoch)
            assert (await init(peer, "")).error_code == ErrorCode.INVALID_REQUEST
            assert (await init(peer, timeout_ms=900_001)).error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
        async with serving(tmp_path / "data") as node, dialled(node) as peer:
            await coordinator(peer)
            assert await begin(peer) == (who[0], who[1] + 1)
            assert (await begin(peer, "y"))[0] > who[0]

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_there_is_no_coordinator_before_the_first_find_coordinator(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        assert (await init(peer)).error_code == ErrorCode.NOT_COORDINATOR

    with_broker(scenario)
