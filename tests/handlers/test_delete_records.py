"""Tests that records deleted with DeleteRecords stay deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.rpc import delete_records
from tests.asking import get, make, put
from tests.conftest import WithBroker
from tests.handlers.fetching import values
from tests.serving import crashed, dialled, serving

ROW = api_table.by_name["DeleteRecords"]
EVERY = range(ROW.min, ROW.max + 1)
TO_THE_END = -1


async def cut(peer: Peer, offset: int, topic: str = "t", index: int = 0, version: int = ROW.max) -> tuple[int, int]:
    """Delete the records below an offset. Returns the error code and the new log start offset."""
    partition = delete_records.DeleteRecordsPartition(partition_index=index, offset=offset)
    asked = delete_records.Request(topics=[delete_records.DeleteRecordsTopic(name=topic, partitions=[partition])])
    (told,) = (await peer.ask("DeleteRecords", asked, version=version)).topics[0].partitions
    assert told.partition_index == index
    return told.error_code, told.low_watermark


async def fill(peer: Peer) -> None:
    """Write records at the offsets 0 to 5, in two batches."""
    await make(peer, "t", partitions=2)
    await put(peer, "t", b"0", b"1", b"2")
    await put(peer, "t", b"3", b"4", b"5")


def test_every_version_moves_the_start(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await fill(peer)
        for start, version in enumerate(EVERY, 2):
            assert await cut(peer, start, version=version) == (0, start)
            assert (await get(peer, "t", start - 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            row = await get(peer, "t", start)
            assert row.log_start_offset == start
            assert values(row, start)[0] == (start, b"%d" % start), (
                "with an offset inside a batch, the whole batch is still returned"
            )
        assert await cut(peer, 1) == (0, 4), "the start does not move back"
        assert await cut(peer, TO_THE_END) == (0, 6)
        assert (await get(peer, "t", 6)).error_code == 0
        assert (await put(peer, "t", b"6")).base_offset == 6

    with_broker(scenario)


def test_refusals_change_nothing(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await fill(peer)
        await make(peer, "compacted", configs={"cleanup.policy": "compact"})
        await make(peer, "both", configs={"cleanup.policy": "compact,delete"})
        for version in EVERY:
            assert await cut(peer, 7, version=version) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
            assert await cut(peer, -2, version=version) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
            assert await cut(peer, 0, index=9, version=version) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
            assert await cut(peer, 0, topic="no", version=version) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
            assert await cut(peer, 0, topic="compacted", version=version) == (ErrorCode.POLICY_VIOLATION, -1)
        assert await cut(peer, 0, topic="both") == (0, 0)
        assert len(values(await get(peer, "t", 0))) == 6

    with_broker(scenario)


def test_deleted_records_do_not_return(tmp_path: Path) -> None:
    """Deleted records do not exist again after a clean shutdown or after a crash right after the response."""

    async def whole() -> None:
        async with serving(tmp_path / "data") as node, dialled(node) as peer:
            await fill(peer)
            assert await cut(peer, 4) == (0, 4)
            await put(peer, "t", b"other", index=1)
            crashed(tmp_path / "data", tmp_path / "crashed")
        for directory in ("data", "crashed"):
            async with serving(tmp_path / directory) as node, dialled(node) as peer:
                assert (await get(peer, "t", 3)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
                assert values(await get(peer, "t", 4), 4) == [(4, b"4"), (5, b"5")]
                assert node.broker.replication.hosting.leads("t", 1).log.start == 0, (
                    "the other partition kept its records"
                )

    asyncio.run(asyncio.wait_for(whole(), 60))
