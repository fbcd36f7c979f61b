"""Many that wait for memory for their frames: however many close, each turn of the loop asks few of the others."""

from __future__ import annotations

import asyncio
from struct import pack

import pytest

from kpybroker.client.peer import Peer
from kpybroker.server.connections.connection import Connection
from kpybroker.server.connections.receive_memory import ASKED_A_TURN
from kpybroker.server.node import Node
from tests.asking import make, produced
from tests.conftest import WithBroker
from tests.server.raw import raw

WAITING = 4 * ASKED_A_TURN


def test_closing_many_that_wait_asks_few_at_once(with_broker: WithBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [0]
    go_on = Connection.go_on

    def counted(connection: Connection) -> None:
        asked[-1] += 1
        go_on(connection)

    monkeypatch.setattr(Connection, "go_on", counted)

    async def scenario(peer: Peer, node: Node) -> None:
        await make(peer, "t", configs={"max.message.bytes": "4000000"})
        closing = []
        for _ in range(WAITING):
            other = await asyncio.open_connection(*node.bootstrap.split(":"))
            other[1].write(pack(">i", 900_000) + bytes(20_000))
            closing.append(other[1])
        async with raw(node) as last:
            last.ask(1, "Produce", produced("t", b"x" * 500_000), 9)
            while node.server.memory.waiting < ASKED_A_TURN + 1:
                await asyncio.sleep(0)
            for writer in closing:
                writer.transport.abort()
            served = asyncio.ensure_future(last.answer("Produce", 9))
            while not served.done():
                asked.append(0)
                await asyncio.sleep(0)
            assert served.result()[1].responses[0].partition_responses[0].error_code == 0

    with_broker(scenario, {"queued.max.request.bytes": "1000000", "socket.request.max.bytes": "1000000"})
    assert sum(asked) > ASKED_A_TURN, "many waited"
    assert max(asked) <= ASKED_A_TURN + 1
