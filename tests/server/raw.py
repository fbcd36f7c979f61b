"""A plain socket to a node, which sends any bytes, so that frames may be invalid."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from struct import pack, unpack
from typing import Any

from kpybroker.server.node import Node
from kpybroker.wire import api as api_table
from kpybroker.wire.codec.codec import parse
from kpybroker.wire.frame import encode_request, parse_response_header


class Raw:
    """The client side of the connection. It sends bytes and reads frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @property
    def transport(self) -> asyncio.Transport:
        """The transport of the connection."""
        assert isinstance(self.writer.transport, asyncio.Transport)
        return self.writer.transport

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def send_frame(self, body: bytes) -> None:
        self.send(pack(">i", len(body)) + body)

    def ask(self, correlation_id: int, name: str, request: Any, version: int) -> None:
        api = api_table.by_name[name]
        self.send(b"".join(encode_request(correlation_id, api, version, request, "raw")))

    async def frame(self) -> bytes:
        (size,) = unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def answer(self, name: str, version: int) -> tuple[int, Any]:
        """Read the next frame. Return its correlation id and the response."""
        api = api_table.by_name[name]
        frame = memoryview(await self.frame())
        correlation_id, position = parse_response_header(frame, api, version)
        return correlation_id, parse(api.response, version, frame, position)

    async def closed(self) -> bool:
        """Wait for the end of the connection. Return whether the broker sent no more bytes before it."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True


@contextlib.asynccontextmanager
async def raw(node: Node) -> AsyncIterator[Raw]:
    host, _, port = node.bootstrap.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
