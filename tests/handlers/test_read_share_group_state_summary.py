"""Tests ReadShareGroupStateSummary over a socket."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.errors import ErrorCode
from kpybroker.server.node import Node
from tests.conftest import WithBroker
from tests.handlers.share_states import coordinated, initialize, summary, write
from tests.handlers.sharing import topic


def test_every_version_has_its_fields(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await topic(peer, partitions=2, batches=0)
        await coordinated(peer)
        await initialize(peer, topic_id, 1, 5)
        await write(peer, topic_id, (1, 0, 6), (7, 7, 2, 1), complete=1)
        [old] = await summary(peer, topic_id, version=0)
        [new, nothing] = await summary(peer, topic_id, 0, 1)
        assert (old.start_offset, old.delivery_complete_count) == (6, -1)
        assert (new.state_epoch, new.leader_epoch, new.start_offset, new.delivery_complete_count) == (1, 0, 6, 1)
        assert (nothing.error_code, nothing.start_offset) == (0, -1)
        [unknown] = await summary(peer, bytes(15) + b"\7")
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    with_broker(scenario)
