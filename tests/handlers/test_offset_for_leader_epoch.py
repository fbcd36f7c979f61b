"""Tests OffsetForLeaderEpoch, which returns the end of an epoch, before and after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import offset_for_leader_epoch as rpc
from tests.asking import make, put
from tests.conftest import WithBroker
from tests.serving import dialled, serving

ROW = api_table.by_name["OffsetForLeaderEpoch"]
EVERY = range(ROW.min, ROW.max + 1)
UNKNOWN = (-1, -1)


async def end_of(
    peer: Peer, epoch: int, *, current: int = -1, index: int = 0, topic: str = "t", version: int = ROW.max
) -> tuple[int, tuple[int, int]]:
    """Request the end of an epoch. Returns the error code, and (epoch, end offset)."""
    asked = rpc.OffsetForLeaderPartition(partition=index, current_leader_epoch=current, leader_epoch=epoch)
    request = rpc.Request(replica_id=-1, topics=[rpc.OffsetForLeaderTopic(topic=topic, partitions=[asked])])
    (told,) = (await peer.ask("OffsetForLeaderEpoch", request, version=version)).topics[0].partitions
    assert told.partition == index
    return told.error_code, (told.leader_epoch, told.end_offset)


def lead_next(node: Node) -> None:
    """Begin the next epoch, as an election would."""
    partition = node.broker.replication.hosting.leads("t", 0)
    partition.leader_epoch += 1
    partition.take_lead()


def test_current_past_and_future_epochs_at_every_version(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        for version in EVERY:
            assert await end_of(peer, 0, version=version) == (0, (0, 0))
        await put(peer, "t", b"a", b"b")
        lead_next(node)
        await put(peer, "t", b"c")
        lead_next(node)
        lead_next(node)  # no record was written in epoch 2
        for version in EVERY:
            assert await end_of(peer, 0, version=version) == (0, (0, 2))
            assert await end_of(peer, 1, version=version) == (0, (1, 3))
            assert (await end_of(peer, 2, version=version))[1][1] == 3
            assert await end_of(peer, 3, version=version) == (0, (3, 3))
            assert await end_of(peer, 4, version=version) == (0, UNKNOWN)
            assert await end_of(peer, -1, version=version) == (0, UNKNOWN)

    with_broker(scenario)


def test_refusals(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        lead_next(node)
        for version in EVERY:
            for current, code in (
                (0, ErrorCode.FENCED_LEADER_EPOCH),
                (1, ErrorCode.NONE),
                (2, ErrorCode.UNKNOWN_LEADER_EPOCH),
            ):
                assert (await end_of(peer, 0, current=current, version=version))[0] == code
            absent = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN)
            assert await end_of(peer, 0, index=7, version=version) == absent
            assert await end_of(peer, 0, topic="no", version=version) == absent

    with_broker(scenario)


def test_epochs_do_not_go_back_over_restarts(tmp_path: Path) -> None:
    async def whole() -> None:
        ends: dict[int, int] = {}
        written = 0
        for _ in range(3):
            async with serving(tmp_path / "data") as node, dialled(node) as peer:
                if not written:
                    await make(peer, "t")
                epoch = node.broker.replication.hosting.leads("t", 0).leader_epoch
                assert not ends or epoch >= max(ends)
                for past, end in ends.items():
                    if past < epoch:
                        assert await end_of(peer, past) == (0, (past, end))
                assert await end_of(peer, epoch) == (0, (epoch, written))
                await put(peer, "t", b"x", b"y")
                written += 2
                ends[epoch] = written
                assert await end_of(peer, epoch) == (0, (epoch, written))
                assert await end_of(peer, epoch + 1) == (0, UNKNOWN)

    asyncio.run(asyncio.wait_for(whole(), 60))
