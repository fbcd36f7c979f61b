"""Records the frames that the nodes of a cluster exchange: a TCP proxy in front of every listener writes them down.

A node advertises the address of its proxies, 127.7.NODE.1, and listens on 127.7.NODE.2. The client id of a request
names the node that sends it.
"""

import asyncio
import contextlib
import itertools
import re
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from kpybroker.wire.api import by_key
from kpybroker.wire.frame import parse_request_header, parse_response_header

CALL_TIMEOUT_S = 10.0
CLIENT_PORT, CONTROLLER_PORT = 7092, 7093
FIRST_CONTROLLER = 101
CLIENT = 0
"""The sender of a request that no node sends."""
SENDER = re.compile(r"(?:raft-client-|broker-)?(\d+)(?:-.*)?")


def advertised(node_id: int) -> str:
    """The address of the proxies of a node."""
    return f"127.7.{node_id}.1"


def port_of(node_id: int) -> int:
    """The port of a node. Brokers have ids below FIRST_CONTROLLER."""
    return CLIENT_PORT if node_id < FIRST_CONTROLLER else CONTROLLER_PORT


def hidden(node_id: int) -> str:
    """The address of the node itself."""
    return f"127.7.{node_id}.2"


@dataclass
class Exchange:
    """A request and its response, None if there was none. `begun` and `ended` count the requests and responses of the
    scene in their order; times are milliseconds from the beginning of the scene."""

    source: int
    to: int
    connection: int
    api: str
    version: int
    begun: int
    begun_ms: int
    request: bytes
    client_id: str
    ended: int | None = None
    ended_ms: int | None = None
    response: bytes | None = None

    def as_json(self) -> dict[str, Any]:
        """The exchange as it is stored; bytes are hexadecimal."""
        return {
            "from": self.source,
            "to": self.to,
            "connection": self.connection,
            "client_id": self.client_id,
            "api": self.api,
            "version": self.version,
            "begun": self.begun,
            "begun_ms": self.begun_ms,
            "ended": self.ended,
            "ended_ms": self.ended_ms,
            "request": self.request.hex(),
            "response": None if self.response is None else self.response.hex(),
        }


@dataclass
class Deed:
    """What the scene did to a node: "start", "stop" or "kill"."""

    deed: str
    node: int
    begun: int
    begun_ms: int

    def as_json(self) -> dict[str, Any]:
        return {"deed": self.deed, "node": self.node, "begun": self.begun, "begun_ms": self.begun_ms}


@dataclass
class Wire:
    """One connection through a proxy."""

    number: int
    to: int
    forth: bytearray = field(default_factory=bytearray)
    back: bytearray = field(default_factory=bytearray)
    open: deque[tuple[int, Exchange]] = field(default_factory=deque)


class Tape:
    """The proxies, on a thread of their own, and what went through them."""

    def __init__(self) -> None:
        self.entries: list[Exchange | Deed] = []
        self._counts = itertools.count(1)
        self._numbers = itertools.count(1)
        self._begun_s = time.monotonic()
        self._held: Callable[[Exchange], bool] | None = None
        self._released = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    @property
    def now_ms(self) -> int:
        """The time since the beginning of the scene."""
        return round((time.monotonic() - self._begun_s) * 1000)

    def proxy(self, node_id: int, port: int) -> None:
        """Accept connections to a listener of this node."""
        self._call(self._open(node_id, port))

    def note(self, deed: str, node_id: int) -> None:
        """Write down what happens to a node."""
        self._call(self._note(deed, node_id))

    def hold(self, held: Callable[[Exchange], bool]) -> None:
        """Hold back the responses to these requests until `release`."""
        self._held = held

    def release(self) -> None:
        """Forward the responses that were held back."""
        self._held = None
        self._call(self._release())

    def close(self) -> None:
        """Close the proxies, and stop the thread."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)

    async def _note(self, deed: str, node_id: int) -> None:
        self.entries.append(Deed(deed, node_id, next(self._counts), self.now_ms))

    async def _release(self) -> None:
        self._released.set()
        self._released = asyncio.Event()

    async def _open(self, node_id: int, port: int) -> None:
        server = await asyncio.start_server(
            lambda reader, writer: self._accepted(reader, writer, node_id, port), advertised(node_id), port
        )
        self._servers.append(server)

    async def _close(self) -> None:
        for server in self._servers:
            server.close()

    async def _accepted(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node_id: int, port: int
    ) -> None:
        wire = Wire(next(self._numbers), node_id)
        writers = [writer]
        with contextlib.suppress(OSError):
            there_reader, there_writer = await asyncio.open_connection(hidden(node_id), port)
            writers.append(there_writer)
            pumps = [
                self._loop.create_task(self._forth(reader, there_writer, wire)),
                self._loop.create_task(self._back(there_reader, writer, wire)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        for one in writers:
            one.close()

    async def _forth(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: Wire) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                wire.forth += data
                for frame in _frames(wire.forth):
                    self._asked(wire, frame)
                writer.write(data)
                await writer.drain()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: Wire) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                wire.back += data
                for frame in _frames(wire.back):
                    exchange = self._answered(wire, frame)
                    while self._held is not None and self._held(exchange):
                        await self._released.wait()
                    writer.write(struct.pack(">i", len(frame)) + frame)
                await writer.drain()

    def _asked(self, wire: Wire, frame: bytes) -> None:
        header, position = parse_request_header(memoryview(frame))
        client_id = header.client_id or ""
        sender = SENDER.fullmatch(client_id)
        exchange = Exchange(
            CLIENT if sender is None else int(sender[1]),
            wire.to,
            wire.number,
            by_key[header.api_key].name,
            header.api_version,
            next(self._counts),
            self.now_ms,
            frame[position:],
            client_id,
        )
        wire.open.append((header.correlation_id, exchange))
        self.entries.append(exchange)

    def _answered(self, wire: Wire, frame: bytes) -> Exchange:
        correlation_id, exchange = wire.open.popleft()
        api = next(api for api in by_key.values() if api.name == exchange.api)
        found, position = parse_response_header(memoryview(frame), api, exchange.version)
        assert found == correlation_id, "responses come in the order of the requests"
        exchange.response = frame[position:]
        exchange.ended, exchange.ended_ms = next(self._counts), self.now_ms
        return exchange

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)


def _frames(received: bytearray) -> list[bytes]:
    """Take the complete frames out of `received`, without their sizes."""
    found = []
    while len(received) >= 4 and len(received) >= 4 + int.from_bytes(received[:4]):
        size = int.from_bytes(received[:4])
        found.append(bytes(received[4 : 4 + size]))
        del received[: 4 + size]
    return found
