"""Tests InitializeShareGroupState over a socket."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from tests.conftest import WithBroker
from tests.handlers.share_states import coordinated, initialize, summary
from tests.handlers.sharing import topic


def test_each_partition_is_begun(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await topic(peer, partitions=2, batches=0)
        await coordinated(peer)
        first, second, third = await initialize(peer, topic_id, 2, 5, 0, 1, 9)
        assert (first.error_code, second.error_code) == (0, 0)
        assert third.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [(row.state_epoch, row.start_offset) for row in await summary(peer, topic_id, 0, 1)] == [(2, 5), (2, 5)]
        [earlier] = await initialize(peer, topic_id, 1, 7)
        assert earlier.error_code == ErrorCode.FENCED_STATE_EPOCH

    with_broker(scenario)
