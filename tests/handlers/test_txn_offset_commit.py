"""Tests that the offsets of TxnOffsetCommit take effect with their transaction, in both versions, even after a
restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire.rpc import add_offsets_to_txn, find_coordinator, offset_commit, offset_fetch
from kpybroker.wire.rpc import txn_offset_commit as rpc
from tests.asking import make
from tests.conftest import WithBroker
from tests.handlers.beginning import Who, begin, coordinator, end
from tests.serving import dialled, serving

UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT
ONE = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}


async def prepared(peer: Peer) -> None:
    await make(peer, "t")
    await coordinator(peer)
    await peer.ask("FindCoordinator", find_coordinator.Request(key_type=0, coordinator_keys=["g"]), version=4)


async def commit(peer: Peer, who: Who, offset: int, name: str = "x", version: int = 5, **facts: Any) -> int:
    """Commit an offset. Returns the error code of the only partition."""
    row = rpc.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = rpc.Request(
        transactional_id=name,
        producer_id=who[0],
        producer_epoch=who[1],
        topics=[rpc.TxnOffsetCommitRequestTopic(name="t", partitions=[row])],
        **{"group_id": "g", **facts},
    )
    while True:
        told = await peer.ask("TxnOffsetCommit", request, version=version)
        code = told.topics[0].partitions[0].error_code
        if code not in (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
            return int(code)


async def fetch(peer: Peer, *, stable: bool) -> int:
    """Fetch the offset. Returns it, or the error code if there is one."""
    asked = offset_fetch.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    group = offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=[asked])
    told = await peer.ask("OffsetFetch", offset_fetch.Request(require_stable=stable, groups=[group]), version=8)
    row = told.groups[0].topics[0].partitions[0]
    return int(row.error_code or row.committed_offset)


async def stable(peer: Peer) -> int:
    while (found := await fetch(peer, stable=True)) == UNSTABLE:
        pass
    return found


async def commit_plainly(peer: Peer, offset: int) -> None:
    row = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = offset_commit.OffsetCommitRequestTopic(name="t", partitions=[row])
    told = await peer.ask("OffsetCommit", offset_commit.Request(group_id="g", topics=[topic]), version=8)
    assert told.topics[0].partitions[0].error_code == 0


@pytest.mark.parametrize("commits", [True, False])
def test_offsets_take_effect_with_their_transaction(commits: bool, with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await prepared(peer)
        await commit_plainly(peer, 3)
        who = await begin(peer)
        assert await commit(peer, who, 7) == 0
        assert await fetch(peer, stable=False) == 3
        assert await fetch(peer, stable=True) == UNSTABLE
        told = await end(peer, who, commits, version=5)
        assert told.error_code == 0
        assert await stable(peer) == (7 if commits else 3)
        assert await commit(peer, who, 9) == ErrorCode.INVALID_PRODUCER_EPOCH, "it belongs to the previous transaction"

    with_broker(scenario, ONE)


def test_a_later_commit_stays(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await prepared(peer)
        one, other = await begin(peer, "one"), await begin(peer, "other")
        assert await commit(peer, one, 5, "one") == 0
        assert await commit(peer, other, 6, "other") == 0
        assert (await end(peer, other, True, name="other", version=5)).error_code == 0
        while await fetch(peer, stable=False) != 6:
            pass
        assert await fetch(peer, stable=True) == UNSTABLE
        assert (await end(peer, one, True, name="one", version=5)).error_code == 0
        assert await stable(peer) == 6

    with_broker(scenario, ONE)


def test_with_transaction_version_1_the_group_is_added_first(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await prepared(peer)
        who = await begin(peer)
        assert await commit(peer, who, 5, version=3) == ErrorCode.INVALID_TXN_STATE
        assert await commit(peer, who, 5, version=4) == ErrorCode.TRANSACTION_ABORTABLE
        request = add_offsets_to_txn.Request(
            transactional_id="x", producer_id=who[0], producer_epoch=who[1], group_id="g"
        )
        assert (await peer.ask("AddOffsetsToTxn", request, version=3)).error_code == 0
        for version in (0, 2, 3, 4):
            assert await commit(peer, who, 5 + version, version=version) == 0
        assert await commit(peer, who, 5, version=3, generation_id=1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await commit(peer, who, 5, version=3, group_id="") == ErrorCode.INVALID_GROUP_ID
        assert (await end(peer, who, True, version=3)).error_code == 0
        assert await stable(peer) == 9

    with_broker(scenario, ONE)


def test_a_restart_loses_nothing(tmp_path: Path) -> None:
    async def whole() -> None:
        async with serving(tmp_path / "data", ONE) as node, dialled(node) as peer:
            await prepared(peer)
            who = await begin(peer)
            assert await commit(peer, who, 7) == 0
        async with serving(tmp_path / "data", ONE) as node, dialled(node) as peer:
            await coordinator(peer)
            assert await commit(peer, who, 8) == 0
            assert await fetch(peer, stable=True) == UNSTABLE
            assert (await end(peer, who, True, version=5)).error_code == 0
            assert await stable(peer) == 8
        async with serving(tmp_path / "data", ONE) as node, dialled(node) as peer:
            assert await fetch(peer, stable=True) in (8, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    asyncio.run(asyncio.wait_for(whole(), 60))
