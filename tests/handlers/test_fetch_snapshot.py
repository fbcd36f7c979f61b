"""Tests FetchSnapshot over a socket, with a file in several pieces."""

from __future__ import annotations

from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.records.snapshot import decode_snapshot
from kpybroker.wire.rpc import fetch_snapshot as rpc
from tests.conftest import WithBroker
from tests.handlers.strangers import inner


def test_a_snapshot_is_read_in_pieces(with_broker: WithBroker) -> None:
    async def scenario(_: Peer, node: Node) -> None:
        async with inner(node) as peer:
            epoch = node.broker.quorum.epoch

            async def piece(position: int, max_bytes: int = 100, end: int = 0, in_epoch: int = epoch) -> Any:
                wanted = rpc.PartitionSnapshot(
                    current_leader_epoch=in_epoch,
                    snapshot_id=rpc.SnapshotId(end_offset=end, epoch=0),
                    position=position,
                )
                topics = [rpc.TopicSnapshot(name=METADATA_TOPIC, partitions=[wanted])]
                request = rpc.Request(replica_id=9, max_bytes=max_bytes, topics=topics)
                return (await peer.ask("FetchSnapshot", request)).topics[0].partitions[0]

            found = b""
            row = await piece(0)
            while row.error_code == 0:
                assert row.position == len(found)
                assert 0 < len(row.unaligned_records) <= 100
                found += bytes(row.unaligned_records)
                row = await piece(len(found))
            assert row.error_code == ErrorCode.POSITION_OUT_OF_RANGE
            assert row.size == len(found)
            decode_snapshot(found, "what was fetched")
            assert (await piece(-1)).error_code == ErrorCode.POSITION_OUT_OF_RANGE
            assert (await piece(0, end=7)).error_code == ErrorCode.SNAPSHOT_NOT_FOUND
            assert (await piece(0, in_epoch=epoch + 1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
            assert (await piece(0, in_epoch=epoch - 1)).error_code == ErrorCode.FENCED_LEADER_EPOCH

    with_broker(scenario)
