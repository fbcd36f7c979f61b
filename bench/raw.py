"""A raw client: frames of one API over a blocking socket, for the questions around a load."""

import socket
import struct
from typing import Any, Self

from bench.measure import LoadError
from bench.target import Target
from kpybroker.wire.message import build, parse

CLIENT_ID = b"bench"
TIMEOUT_S = 30.0
HEADER_BYTES = 9
"""Size, correlation id and the empty tagged fields in front of a flexible response."""


def frame(key: int, version: int, request: Any) -> bytes:
    """The request with its size and header v2, thus for flexible versions; the correlation id is always 0."""
    head = struct.pack(">hhih", key, version, 0, len(CLIENT_ID)) + CLIENT_ID + b"\0"
    body = build(request, version)
    return struct.pack(">i", len(head) + len(body)) + head + body


class Connection:
    """One connection; closed at the end of its `with`."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.socket = socket.create_connection(target.address, timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, key: int, version: int, request: Any, response: type[Any]) -> Any:
        """Send one request and return its parsed response."""
        self.socket.sendall(frame(key, version, request))
        return parse(response, version, self.reply(), HEADER_BYTES)

    def reply(self) -> bytes:
        """The next whole reply, its size prefix included."""
        head = self._exactly(4)
        return head + self._exactly(struct.unpack(">i", head)[0])

    def _exactly(self, size_bytes: int) -> bytes:
        parts = []
        while size_bytes:
            part = self.socket.recv(size_bytes)
            if not part:
                raise LoadError(f"{self.target.name} closed the connection")
            parts.append(part)
            size_bytes -= len(part)
        return b"".join(parts)
