"""A raw client: single requests over a blocking socket, for the setup of a load."""

import socket
import struct
from typing import Any, Self

from bench.measure import LoadError
from bench.target import Target
from kpybroker.wire.codec.codec import build, parse

CLIENT_ID = b"bench"
TIMEOUT_S = 30.0
RECEIVE_BYTES = 64 * 1024
HEADER_BYTES = 9
"""Size, correlation id and the empty tagged fields of a flexible response header."""


def frame(key: int, version: int, request: Any) -> bytes:
    """A request with its size and header v2 (flexible versions). The correlation id is always 0."""
    head = struct.pack(">hhih", key, version, 0, len(CLIENT_ID)) + CLIENT_ID + b"\0"
    body = build(request, version)
    return struct.pack(">i", len(head) + len(body)) + head + body


class Connection:
    """One connection, to be used as a context manager."""

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
        """The next complete reply with its size prefix. There must be no other data after it."""
        found = self.socket.recv(RECEIVE_BYTES)
        while len(found) < 4:
            found += self._more(4 - len(found))
        wanted = 4 + int(struct.unpack_from(">i", found)[0])
        if len(found) == wanted:
            return found
        parts, left = [found], wanted - len(found)
        while left > 0:
            parts.append(self._more(left))
            left -= len(parts[-1])
        if left < 0:
            raise LoadError(f"{self.target.name} sent {-left} bytes that belong to no request")
        return b"".join(parts)

    def _more(self, size_bytes: int) -> bytes:
        part = self.socket.recv(size_bytes)
        if not part:
            raise LoadError(f"{self.target.name} closed the connection")
        return part
