"""Hostile clients, or clients on bad connections: they send partial frames, do not read, or flood the node with
requests. They stay within the broker's limits.

Each is a set of connections to one node. `step` is called a few times a second until `close`.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable
from typing import Protocol

from kpybroker.wire.api import by_name
from kpybroker.wire.codec.codec import build
from kpybroker.wire.rpc import fetch

CLIENT_ID = b"hostile"
DRIBBLERS = 8
DRIBBLED_BYTES = 40 << 20
"""The frame size that each dribbler announces; less than socket.request.max.bytes."""
DEAF = 6
DEAF_REQUESTS = 20
DEAF_BYTES = 8 << 20
"""The max bytes of each Fetch that deaf clients send."""
FLOODERS = 12
FLOOD_BYTES = 1 << 20
"""The size of the frame that each flooder sends in every step."""
TIMEOUT_S = 0.5
Dial = Callable[[tuple[str, int]], socket.socket]
"""Opens a connection to a node. Raises OSError."""


class Hostile(Protocol):
    """The interface of all hostile clients."""

    def step(self) -> None: ...

    def close(self) -> None: ...


def dial(address: tuple[str, int]) -> socket.socket:
    """A connection without TLS. Raises OSError."""
    return socket.create_connection(address, timeout=TIMEOUT_S)


def _connected(address: tuple[str, int], count: int, dial: Dial) -> list[socket.socket]:
    """Up to `count` connections, until the node does not accept one in time."""
    made: list[socket.socket] = []
    try:
        while len(made) < count:
            made.append(dial(address))
    except OSError:
        pass
    for one in made:
        one.setblocking(False)
    return made


class Connections:
    """Open connections to a node, without those that the node has closed."""

    def __init__(self, address: tuple[str, int], count: int, dial: Dial) -> None:
        self._address = address
        self._dial = dial
        self._count = count
        self._sockets = _connected(address, count, dial)

    def connect_again(self) -> None:
        """Close all connections, and open as many new ones."""
        self.close()
        self._sockets = _connected(self._address, self._count, self._dial)

    def send(self, data: bytes) -> None:
        """Send to each connection as much as its socket accepts now."""
        for one in list(self._sockets):
            try:
                one.send(data)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                continue
            except OSError:
                one.close()
                self._sockets.remove(one)

    def close(self) -> None:
        for one in self._sockets:
            one.close()
        self._sockets.clear()


class Dribblers(Connections):
    """Connections that announce large frames and send one byte per step."""

    def __init__(self, address: tuple[str, int], dial: Dial = dial) -> None:
        super().__init__(address, DRIBBLERS, dial)
        self.send(struct.pack(">ihhi", DRIBBLED_BYTES, by_name["Produce"].key, 9, 1))

    def step(self) -> None:
        self.send(b"\0")


class Deaf(Connections):
    """Connections that send large fetches again and again, and read no replies."""

    def __init__(self, address: tuple[str, int], topic: str, partitions: int, dial: Dial = dial) -> None:
        super().__init__(address, DEAF, dial)
        rows = [
            fetch.FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=DEAF_BYTES)
            for index in range(partitions)
        ]
        request = fetch.Request(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=DEAF_BYTES,
            session_epoch=-1,
            topics=[fetch.FetchTopic(topic=topic, partitions=rows)],
        )
        head = struct.pack(">hhih", by_name["Fetch"].key, 12, 1, len(CLIENT_ID)) + CLIENT_ID + b"\0"
        body = build(request, 12)
        self._frame = struct.pack(">i", len(head) + len(body)) + head + body
        self._left = DEAF_REQUESTS

    def step(self) -> None:
        if self._left:
            self._left -= 1
            self.send(self._frame)


class Flooders(Connections):
    """Connections that are opened again in each step, and send large frames that no handler accepts."""

    def __init__(self, address: tuple[str, int], dial: Dial = dial) -> None:
        super().__init__(address, FLOODERS, dial)
        self._frame = struct.pack(">ihhih", FLOOD_BYTES, by_name["Produce"].key, 9, 1, -1).ljust(FLOOD_BYTES + 4, b"\0")

    def step(self) -> None:
        self.send(self._frame)
        self.connect_again()
