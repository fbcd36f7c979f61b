"""Tests DeleteShareGroupOffsets over a socket."""

from __future__ import annotations

from typing import Any

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire.rpc import delete_share_group_offsets
from tests.conftest import WithBroker
from tests.handlers.sharing import AT_ONCE, beat, described_offsets, started


async def delete(peer: Peer, group: str, *topics: str) -> Any:
    rows = [delete_share_group_offsets.DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]
    return await peer.ask("DeleteShareGroupOffsets", delete_share_group_offsets.Request(group_id=group, topics=rows))


def test_an_empty_group_forgets_a_topic(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        await started(peer)
        assert (await delete(peer, "g", "t")).error_code == ErrorCode.NON_EMPTY_GROUP
        assert (await delete(peer, "none", "t")).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        await beat(peer, "g", "m", -1)
        told = await delete(peer, "g", "t", "none")
        assert [row.error_code for row in told.responses] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await described_offsets(peer, "g") == {}
        told = await delete(peer, "g", "t")
        assert [row.error_code for row in told.responses] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    with_broker(scenario, AT_ONCE)
