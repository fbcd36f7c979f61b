"""A client connection to a node in virtual time, which can send any bytes, pause reading, and detect its close."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.frame import encode_request
from tests.server.virtual import ADDRESS, PORT


class Line(asyncio.Protocol):
    """The protocol of the connection. Call `line` to create one."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.received = bytearray()
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True

    def send(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def ask(self, name: str, request: Any, version: int) -> None:
        self.send(b"".join(encode_request(1, api_table.by_name[name], version, request, "line")))

    def pause(self) -> None:
        """Stop reading."""
        assert self.transport is not None
        self.transport.pause_reading()

    def resume(self) -> None:
        """Continue reading."""
        assert self.transport is not None
        self.transport.resume_reading()

    def close(self) -> None:
        assert self.transport is not None
        self.transport.close()

    async def dribble(self, size: int, every_s: float) -> None:
        """Send `size` bytes repeatedly until the node closes the connection or the test ends."""
        while not self.is_closed:
            self.send(bytes(size))
            await asyncio.sleep(every_s)


async def line(node: Node, port: int = PORT) -> Line:
    """Connect to a node from the address of the node."""
    _, protocol = await node.broker.world.network.connect(Line, ADDRESS, port)
    assert isinstance(protocol, Line)
    return protocol
