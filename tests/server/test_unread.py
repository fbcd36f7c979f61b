"""If clients send requests without reading replies, the broker holds few replies, loses none, and serves others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from kpybroker.client.peer import Peer
from kpybroker.server.connections.connection import REPLIES_LIMIT
from kpybroker.server.connections.writing import OWED_LIMIT_BYTES
from kpybroker.server.node import Node
from tests.asking import fetched, get, make, produced, put
from tests.conftest import WithBroker
from tests.server.raw import raw

WRITE_HIGH_WATER_BYTES = 64 * 1024
"""The number of bytes that a transport holds before it reports that its peer is slow."""
HEADERS_BYTES = 1000
"""An upper bound for the size of reply headers in this test."""


def held_bytes(node: Node) -> Iterator[int]:
    """The unsent bytes of each connection."""
    for connection in node.server.connections():
        if connection.transport is not None:
            yield connection.transport.get_write_buffer_size()


async def serve_another(peer: Peer, value: bytes) -> None:
    """Produce and fetch with another client. In each round trip, the broker also processes the silent connections."""
    told = await put(peer, "other", value)
    assert told.error_code == 0
    assert value in bytes((await get(peer, "other", told.base_offset)).records)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value_bytes", "asked"),
    [(900_000, REPLIES_LIMIT + 44), (2_000_000, 100), (20_000, 4000)],
    ids=["each below the limit", "each above the limit", "many small"],
)
def test_replies_held_for_a_client_that_does_not_read_are_bounded(
    value_bytes: int, asked: int, with_broker: WithBroker
) -> None:
    bound = WRITE_HIGH_WATER_BYTES + OWED_LIMIT_BYTES + value_bytes + HEADERS_BYTES

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "large", configs={"max.message.bytes": "4000000"})
        await make(peer, "other")
        await peer.ask("Produce", produced("large", b"x" * value_bytes), version=9)
        async with contextlib.AsyncExitStack() as stack:
            silent = [await stack.enter_async_context(raw(node)) for _ in range(3)]
            for one in silent:
                one.transport.pause_reading()  # the client does not read
                for number in range(asked):
                    one.ask(number, "Fetch", fetched("large", 0), 12)
            most = 0
            for number in range(20):
                await serve_another(peer, b"number %d" % number)
                most = max(most, *held_bytes(node))
            assert 0 < most <= bound
            first = silent[0]
            first.transport.resume_reading()
            for number in range(asked):
                correlation_id, answer = await first.answer("Fetch", 12)
                assert correlation_id == number
                assert len(answer.responses[0].partitions[0].records) > value_bytes
                assert max(held_bytes(node)) <= bound

    with_broker(scenario)
