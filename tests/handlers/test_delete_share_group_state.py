"""Tests DeleteShareGroupState over a socket."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.server.node import Node
from tests.conftest import WithBroker
from tests.handlers.share_states import coordinated, delete, initialize, summary
from tests.handlers.sharing import topic


def test_what_is_deleted_is_gone(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await topic(peer, partitions=2, batches=0)
        await coordinated(peer)
        await initialize(peer, topic_id, 1, 5)
        for _ in range(2):
            [row] = await delete(peer, topic_id)
            assert row.error_code == 0
        assert (await summary(peer, topic_id))[0].start_offset == -1

    with_broker(scenario)
