"""Tests DescribeProducers, which returns the state of idempotent producers in a partition."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire.rpc import describe_producers as rpc
from tests.asking import NOW_MS, batch_of, make, put
from tests.conftest import WithBroker
from tests.serving import dialled, serving


async def producers(peer: Peer, index: int = 0, topic: str = "t") -> tuple[int, list[tuple[int, ...]]]:
    """The error code, and the id, epoch, last sequence, last timestamp and transaction start of each producer."""
    request = rpc.Request(topics=[rpc.TopicRequest(name=topic, partition_indexes=[index])])
    (told,) = (await peer.ask("DescribeProducers", request)).topics[0].partitions
    assert told.partition_index == index
    return told.error_code, sorted(
        (one.producer_id, one.producer_epoch, one.last_sequence, one.last_timestamp, one.current_txn_start_offset)
        for one in told.active_producers
    )


async def write(peer: Peer, producer_id: int, epoch: int, sequence: int, *, later_ms: int = 0) -> int:
    facts = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    answer = await put(peer, "t", records=batch_of(b"a", b"b", first_ms=NOW_MS + later_ms, **facts))
    return int(answer.error_code)


def test_the_last_batch_of_each_producer(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", partitions=2)
        await put(peer, "t", b"of nobody")
        assert await producers(peer) == (0, [])
        for batch in range(7):
            assert await write(peer, 5, 0, 2 * batch, later_ms=batch) == 0
        assert await write(peer, 9, 3, 0) == 0
        assert await producers(peer) == (0, [(5, 0, 13, NOW_MS + 6, -1), (9, 3, 1, NOW_MS, -1)])
        assert await write(peer, 5, 0, 99) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await write(peer, 5, 1, 0, later_ms=50) == 0
        assert await producers(peer) == (0, [(5, 1, 1, NOW_MS + 50, -1), (9, 3, 1, NOW_MS, -1)])
        assert await producers(peer, index=1) == (0, [])

    with_broker(scenario)


def test_refusals(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t")
        assert await producers(peer, index=4) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
        assert await producers(peer, topic="no") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])

    with_broker(scenario)


def test_a_restart_keeps_all_producers(tmp_path: Path) -> None:
    async def whole() -> None:
        async with serving(tmp_path / "data") as node, dialled(node) as peer:
            await make(peer, "t")
            # The state of a producer whose records are older than producer.id.expiration.ms would be deleted.
            now_ms = node.broker.world.wall_ms() - NOW_MS
            assert await write(peer, 5, 2, 0, later_ms=now_ms) == 0
            before = await producers(peer)
        async with serving(tmp_path / "data") as node, dialled(node) as peer:
            assert await producers(peer) == before
            assert await write(peer, 5, 2, 0) == 0, "a duplicate"
            assert await write(peer, 5, 2, 2) == 0

    asyncio.run(asyncio.wait_for(whole(), 60))
