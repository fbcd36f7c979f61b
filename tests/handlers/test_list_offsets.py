"""Tests ListOffsets: the ends of a partition, and offsets by time."""

from __future__ import annotations

import pytest

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import list_offsets
from tests.asking import NOW_MS, batch_of, make, put
from tests.conftest import WithBroker

ROW = api_table.by_name["ListOffsets"]
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6


async def ask(peer: Peer, timestamp: int, version: int = 11, epoch: int = -1, topic: str = "t") -> tuple[int, ...]:
    wanted = list_offsets.ListOffsetsPartition(partition_index=0, timestamp=timestamp, current_leader_epoch=epoch)
    request = list_offsets.Request(
        replica_id=-1, topics=[list_offsets.ListOffsetsTopic(name=topic, partitions=[wanted])]
    )
    told = (await peer.ask("ListOffsets", request, version=version)).topics[0].partitions[0]
    return told.error_code, told.offset, told.timestamp


async def fill(peer: Peer) -> None:
    """Write records at the offsets 0 to 5, with the times 0, 0, 1000, 1000, 500, 500 ms after NOW_MS."""
    await make(peer, "t")
    for later in (0, 1000, 500):
        await put(peer, "t", records=batch_of(b"a", b"b", first_ms=NOW_MS + later))


@pytest.mark.parametrize("version", range(ROW.min, ROW.max + 1))
def test_the_ends_and_a_time_in_every_version(version: int, with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await fill(peer)
        assert await ask(peer, EARLIEST, version) == (0, 0, -1)
        assert await ask(peer, LATEST, version) == (0, 6, -1)
        assert await ask(peer, NOW_MS + 400, version) == (0, 2, NOW_MS + 1000)

    with_broker(scenario)


def test_times_between_before_and_after(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await fill(peer)
        assert await ask(peer, 0) == (0, 0, NOW_MS)
        assert await ask(peer, NOW_MS + 1) == (0, 2, NOW_MS + 1000)
        assert await ask(peer, NOW_MS + 1001) == (0, -1, -1)
        assert await ask(peer, MAX_TIMESTAMP) == (0, 2, NOW_MS + 1000)
        assert await ask(peer, EARLIEST_LOCAL) == (0, 0, -1)
        assert await ask(peer, LATEST_TIERED) == (0, -1, -1)
        assert await ask(peer, PENDING_UPLOAD) == (0, -1, -1)

    with_broker(scenario)


def test_an_empty_partition(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        assert await ask(peer, EARLIEST) == (0, 0, -1)
        assert await ask(peer, LATEST) == (0, 0, -1)
        assert await ask(peer, MAX_TIMESTAMP) == (0, -1, -1)
        assert await ask(peer, NOW_MS) == (0, -1, -1)

    with_broker(scenario)


@pytest.mark.parametrize(
    ("version", "code"), [(11, ErrorCode.OFFSET_NOT_AVAILABLE), (4, ErrorCode.LEADER_NOT_AVAILABLE)]
)
def test_a_leader_that_does_not_know_the_latest_offset_refuses(
    version: int, code: ErrorCode, with_broker: WithBroker
) -> None:
    """After a crash with fsync=always, the end is known only once it has been synced. Until then, the leader must not
    return offsets, because they could go back."""

    async def scenario(peer: Peer, node: Node) -> None:
        await fill(peer)
        partition = node.broker.replication.hosting.find("t", 0)
        assert partition is not None
        partition.epoch_start = partition.log.high_watermark + 1
        assert (await ask(peer, LATEST, version))[0] == code
        assert (await ask(peer, NOW_MS, version))[0] == code
        assert await ask(peer, EARLIEST, version) == (0, 0, -1)

    with_broker(scenario)


def test_refusals(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await fill(peer)
        assert (await ask(peer, LATEST, topic="absent"))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await ask(peer, LATEST, epoch=99))[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await ask(peer, MAX_TIMESTAMP, version=6))[0] == ErrorCode.UNSUPPORTED_VERSION

    with_broker(scenario)
