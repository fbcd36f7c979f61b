"""Tests ReadShareGroupState over a socket."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from tests.conftest import WithBroker
from tests.handlers.share_states import coordinated, initialize, read, write
from tests.handlers.sharing import topic


def test_a_later_leader_fences_the_earlier(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await topic(peer, partitions=2, batches=0)
        await coordinated(peer)
        [nothing] = await read(peer, topic_id)
        assert nothing.error_code == ErrorCode.INVALID_REQUEST
        await initialize(peer, topic_id, 1, -1)
        await write(peer, topic_id, (1, 0, 5), (5, 9, 2, 1))
        [found] = await read(peer, topic_id, 3)
        assert (found.error_code, found.state_epoch, found.start_offset) == (0, 1, 5)
        assert [(each.first_offset, each.last_offset, each.delivery_state) for each in found.state_batches] == [
            (5, 9, 2)
        ]
        [earlier] = await read(peer, topic_id, 2)
        assert earlier.error_code == ErrorCode.FENCED_LEADER_EPOCH

    with_broker(scenario)
