"""Tests DescribeShareGroupOffsets over a socket."""

from __future__ import annotations

from kpybroker.client.peer import Peer
from kpybroker.server.node import Node
from tests.conftest import WithBroker
from tests.handlers.sharing import ACCEPT, AT_ONCE, acknowledge, append, described_offsets, fetch, started


def test_the_lag_counts_what_is_not_acknowledged(with_broker: WithBroker) -> None:
    async def scenario(peer: Peer, node: Node) -> None:
        topic_id = await started(peer)
        row = (await described_offsets(peer, "g"))["t", 0]
        assert (row.start_offset, row.lag) == (-1, -1)
        await fetch(peer, topic_id, 0)
        await acknowledge(peer, topic_id, 1, (0, 3, ACCEPT), (6, 7, ACCEPT))
        row = (await described_offsets(peer, "g"))["t", 0]
        assert (row.start_offset, row.lag) == (0, 14), "the stored start offset lags behind, but the lag does not"
        assert (await described_offsets(peer, "g", version=0))["t", 0].lag == -1
        await append(peer, "t", 5)
        assert (await described_offsets(peer, "g"))["t", 0].lag == 19
        await acknowledge(peer, topic_id, 2, (4, 5, ACCEPT), (8, 19, ACCEPT))
        await fetch(peer, topic_id, 3)
        await acknowledge(peer, topic_id, 4, (20, 24, ACCEPT))
        assert (await described_offsets(peer, "g"))["t", 0].lag == 0
        assert await described_offsets(peer, "none") == {}

    with_broker(scenario, AT_ONCE)
