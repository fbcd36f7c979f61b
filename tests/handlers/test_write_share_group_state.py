"""Tests WriteShareGroupState over a socket."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from tests.conftest import WithBroker
from tests.handlers.share_states import coordinated, initialize, summary, write
from tests.handlers.sharing import topic


def test_every_version_writes(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await topic(peer, partitions=2, batches=0)
        await coordinated(peer)
        await initialize(peer, topic_id, 1, -1)
        [row] = await write(peer, topic_id, (1, 0, 5), (5, 9, 2, 1), complete=5, version=0)
        assert row.error_code == 0
        assert (await summary(peer, topic_id))[0].delivery_complete_count == -1
        [row] = await write(peer, topic_id, (1, 0, 5), (10, 11, 4, 1), complete=7)
        assert (row.error_code, (await summary(peer, topic_id))[0].delivery_complete_count) == (0, 7)
        [row] = await write(peer, topic_id, (0, 0, 5))
        assert row.error_code == ErrorCode.FENCED_STATE_EPOCH

    with_broker(scenario)
