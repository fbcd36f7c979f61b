"""Tests EndTxn over a socket: consumers see all or nothing of a transaction, even after a crash of the broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from tests.asking import make
from tests.conftest import WithBroker
from tests.handlers.beginning import add, begin, coordinator, described, end, init, settled
from tests.handlers.transacting import committed, write
from tests.serving import crashed, dialled, serving

ROW = api_table.by_name["EndTxn"]


@pytest.mark.parametrize("commit", [True, False])
def test_every_version_ends_a_transaction(with_broker: WithBroker, commit: bool) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", 2)
        await coordinator(peer)
        seen: list[bytes] = []
        for version in range(ROW.min, ROW.max + 1):
            who = await begin(peer)
            assert await add(peer, who, 0, 1) == [0, 0]
            values = [b"%d %d" % (version, index) for index in (0, 1)]
            for index in (0, 1):
                told = await write(peer, who[0], 0, values[index], epoch=who[1], index=index, transactional_id="x")
                assert told.error_code == 0
            assert await committed(peer) == seen
            told = await end(peer, who, commit, version=version)
            assert told.error_code == 0
            if version >= 5:
                assert (told.producer_id, told.producer_epoch) == (who[0], who[1] + 1)
            assert (await settled(peer)).transaction_state == ("CompleteCommit" if commit else "CompleteAbort")
            seen += values[:1] if commit else []
            assert await committed(peer) == seen

    with_broker(scenario)


@pytest.mark.parametrize("verifies", ["true", "false"])
def test_with_transaction_version_2_the_produce_adds_partitions(with_broker: WithBroker, verifies: str) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await coordinator(peer)
        who = await begin(peer)
        for number in range(5):  # in quick succession, because a Produce waits for the end of the previous transaction
            value = b"%d" % number
            told = await write(peer, who[0], 0, value, epoch=who[1], transactional_id="x", version=12)
            assert told.error_code == 0
            ended = await end(peer, who, number % 2 == 0, version=5)
            assert ended.error_code == 0
            who = (ended.producer_id, ended.producer_epoch)
        await settled(peer)
        assert await committed(peer) == [b"0", b"2", b"4"]

    with_broker(scenario, {"transaction.partition.verification.enable": verifies})


def test_a_zombie_changes_nothing(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await coordinator(peer)
        zombie = await begin(peer)
        await add(peer, zombie, 0)
        assert (await write(peer, zombie[0], 0, b"zombie", epoch=zombie[1], transactional_id="x")).error_code == 0
        assert (await init(peer)).error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        who = await begin(peer)
        told = await write(peer, zombie[0], 1, b"zombie again", epoch=zombie[1], transactional_id="x")
        assert told.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await end(peer, zombie, True)).error_code == ErrorCode.PRODUCER_FENCED
        await add(peer, who, 0)
        assert (await write(peer, who[0], 0, b"heir", epoch=who[1], transactional_id="x")).error_code == 0
        assert (await end(peer, who, True)).error_code == 0
        await settled(peer)
        assert await committed(peer) == [b"heir"]

    with_broker(scenario)


@pytest.mark.parametrize("commit", [True, False])
def test_an_outcome_decided_before_a_crash_is_completed_after_it(tmp_path: Path, commit: bool) -> None:
    """The directory is copied between the decision and its markers, in the state in which `kill -9` would leave it."""

    async def whole() -> None:
        async with serving(tmp_path / "data") as node, dialled(node) as peer:
            await make(peer, "t")
            await coordinator(peer)
            who = await begin(peer)
            await add(peer, who, 0)
            await write(peer, who[0], 0, b"record", epoch=who[1], transactional_id="x")
            told = asyncio.create_task(end(peer, who, commit))
            node.broker.coordinators.transactions.markers.send = (  # type: ignore[method-assign]  # as if the broker died here
                lambda *_: None
            )
            assert (await told).error_code == 0
            assert (await described(peer)).transaction_state.startswith("Prepare")
            crashed(tmp_path / "data", tmp_path / "crashed")
        async with serving(tmp_path / "crashed") as node, dialled(node) as peer:
            await coordinator(peer)
            assert (await settled(peer)).transaction_state == ("CompleteCommit" if commit else "CompleteAbort")
            assert await committed(peer) == ([b"record"] if commit else [])
            await begin(peer)

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_a_transaction_that_takes_too_long_is_aborted(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        await coordinator(peer)
        who = await begin(peer, timeout_ms=1)
        await add(peer, who, 0)
        await write(peer, who[0], 0, b"late", epoch=who[1], transactional_id="x")
        while (await described(peer)).transaction_state != "CompleteAbort":
            await asyncio.sleep(0)
        assert await committed(peer) == []
        assert (await end(peer, who, True)).error_code == ErrorCode.PRODUCER_FENCED

    with_broker(scenario, {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1"})
