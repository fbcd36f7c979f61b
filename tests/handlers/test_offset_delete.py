"""Tests OffsetDelete over a socket."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from kpybroker.wire.rpc import offset_delete as rpc
from tests.conftest import WithBroker
from tests.handlers.grouping import commit, committed, coordinator, member


async def forget(peer: Peer, group: str, *topics: str) -> tuple[int, dict[str, list[int]]]:
    """Delete the offsets of the partitions 0 and 7 of topics with two partitions. Returns the response."""
    partitions = [rpc.OffsetDeleteRequestPartition(partition_index=index) for index in (0, 7, -1)]
    asked = [rpc.OffsetDeleteRequestTopic(name=topic, partitions=partitions) for topic in topics]
    reply = await peer.ask("OffsetDelete", rpc.Request(group_id=group, topics=asked))
    return reply.error_code, {each.name: [told.error_code for told in each.partitions] for each in reply.topics}


def test_offsets_are_deleted_unless_the_group_is_subscribed(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        assert await forget(peer, "g", "t") == (ErrorCode.NOT_COORDINATOR, {})
        await coordinator(peer, "t", "u")
        assert await forget(peer, "", "t") == (ErrorCode.INVALID_GROUP_ID, {})
        assert await forget(peer, "missing", "t") == (ErrorCode.GROUP_ID_NOT_FOUND, {})
        known = await member(peer, "g")
        for topic in ("t", "u"):
            await commit(peer, "g", topic, member_id=known, generation_id_or_member_epoch=1)
        code, told = await forget(peer, "g", "t", "u", "nosuch")
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        subscribed = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        assert (code, told) == (0, {"t": [subscribed, unknown, unknown], "u": [0, unknown, unknown], "nosuch": [3] * 3})
        assert (await committed(peer, "g", "t"), await committed(peer, "g", "u")) == (5, -1)

    with_broker(scenario)
