"""The connections of scripted peers, and the requests that arrive on them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kpybroker.wire.api import Api
from kpybroker.wire.frame import response_head


class Line(asyncio.Protocol):
    """One end of a connection, as seen by a scripted peer. `on_frame` gets the frames without their sizes."""

    def __init__(self, on_frame: Callable[[Line, bytes], None]) -> None:
        self._on_frame = on_frame
        self._received = bytearray()
        self.transport: asyncio.Transport
        self.is_open = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4 and len(self._received) >= 4 + int.from_bytes(self._received[:4]):
            size = int.from_bytes(self._received[:4])
            frame = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            self._on_frame(self, frame)

    def send(self, frame: bytes) -> None:
        if self.is_open:
            self.transport.write(len(frame).to_bytes(4) + frame)


@dataclass(eq=False)
class Arrival:
    """A request of the node that no response was sent to yet."""

    line: Line
    api: Api
    version: int
    correlation_id: int
    fields: dict[str, Any]

    def answer(self, body: bytes) -> None:
        self.line.send(response_head(self.correlation_id, self.api, self.version) + body)
