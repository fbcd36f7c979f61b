"""Hostile clients, or clients on bad lines: they send partial frames, do not read, or flood. None exceeds a limit.

Each is a set of connections to one node. `step` is called a few times a second until `close`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
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
"""The max bytes of each of their fetches."""
FLOODERS = 12
FLOOD_BYTES = 1 << 20
"""The size of the frame that each flooder sends in every step."""
TIMEOUT_S = 0.5


class Hostile(Protocol):
    """The interface of all hostile clients."""

    def step(self) -> None: ...

    def close(self) -> None: ...


def _connected(address: tuple[str, int], count: int) -> list[socket.socket]:
    """Up to `count` connections, as many as the node accepts."""
    made = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            made.append(socket.create_connection(address, timeout=TIMEOUT_S))
    for one in made:
        one.setblocking(False)
    return made


class Connections:
    """Open connections to a node, without those that the node has closed."""

    def __init__(self, address: tuple[str, int], count: int) -> None:
        self._address = address
        self._sockets = _connected(address, count)

    def send(self, data: bytes) -> None:
        """Send to each connection as much as its socket accepts now."""
        for one in list(self._sockets):
            try:
                one.send(data)
            except BlockingIOError:
                continue
            except OSError:
                one.close()
                self._sockets.remove(one)

    def close(self) -> None:
        for one in self._sockets:
            one.close()
        self._sockets.clear()


class Dribblers(Connections):
    """They announce large frames and send one byte per step."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, DRIBBLERS)
        self.send(struct.pack(">ihhi", DRIBBLED_BYTES, by_name["Produce"].key, 9, 1))

    def step(self) -> None:
        self.send(b"\0")


class Deaf(Connections):
    """They send large fetches again and again, and read no replies."""

    def __init__(self, address: tuple[str, int], topic: str, partitions: int) -> None:
        super().__init__(address, DEAF)
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
    """They reconnect in each step, and send large frames that no handler accepts."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, FLOODERS)
        self._frame = struct.pack(">ihhih", FLOOD_BYTES, by_name["Produce"].key, 9, 1, -1).ljust(FLOOD_BYTES + 4, b"\0")

    def step(self) -> None:
        self.send(self._frame)
        self.close()
        self._sockets = _connected(self._address, FLOODERS)
