"""Clients that send requests but do not read: the broker holds few of their replies, serves others, and loses
nothing."""

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
"""What a transport holds before it reports that its peer is slow."""
HEADERS_BYTES = 1000
"""More than the header of any reply here."""


def held_bytes(node: Node) -> Iterator[int]:
    """By connection, the replies that have not left the broker."""
    for connection in node.server.connections():
        if connection.transport is not None:
            yield connection.transport.get_write_buffer_size()


async def serve_another(peer: Peer, value: bytes) -> None:
    """Another client produces and fetches; each round trip gives a turn to the connections that do not read."""
    told = await put(peer, "other", value)
    assert told.error_code == 0
    assert value in bytes((await get(peer, "other", told.base_offset)).records)


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
                one.transport.pause_reading()  # a peer that reads nothing
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
