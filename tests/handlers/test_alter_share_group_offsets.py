"""Tests AlterShareGroupOffsets over a socket."""

from __future__ import annotations

from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire.rpc import alter_share_group_offsets
from tests.conftest import WithBroker
from tests.handlers.sharing import AT_ONCE, beat, codes, described_offsets, fetch, joined, ranges, started


async def alter(peer: Peer, group: str, starts: dict[int, int], topic: str = "t") -> Any:
    rpc = alter_share_group_offsets
    rows = [
        rpc.AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=start)
        for index, start in starts.items()
    ]
    named = rpc.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=rows)
    return await peer.ask("AlterShareGroupOffsets", rpc.Request(group_id=group, topics=[named]))


def test_an_empty_group_begins_anew(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await started(peer)
        assert ranges(await fetch(peer, topic_id, 0)) == [(0, 19, 1)]
        assert (await alter(peer, "g", {0: 5})).error_code == ErrorCode.NON_EMPTY_GROUP
        await fetch(peer, topic_id, -1, partitions=[])
        await beat(peer, "g", "m", -1)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes(await alter(peer, "g", {0: 5, 7: 0})) == [0, unknown]
        assert codes(await alter(peer, "g", {0: 5}, "none")) == [unknown]
        assert (await described_offsets(peer, "g"))["t", 0].start_offset == 5
        await joined(peer)
        assert ranges(await fetch(peer, topic_id, 0)) == [(5, 19, 1)]

    with_broker(scenario, AT_ONCE)


def test_a_group_is_made_for_it(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await started(peer)
        assert codes(await alter(peer, "new", {0: 5})) == [0]
        assert (await described_offsets(peer, "new"))["t", 0].lag == 15

    with_broker(scenario, AT_ONCE)
