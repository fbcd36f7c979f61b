"""Clients that mean no good, or are on bad lines: they send half frames, do not read, or flood. None breaks a limit.

Each is a set of connections to one node, which `step` drives a few times a second, until `close`.
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
"""What each of them announces; less than socket.request.max.bytes."""
DEAF = 6
DEAF_REQUESTS = 20
DEAF_BYTES = 8 << 20
"""What each of their fetches may be answered with."""
FLOODERS = 12
FLOOD_BYTES = 1 << 20
"""A frame of theirs, sent once a step."""
TIMEOUT_S = 0.5


class Hostile(Protocol):
    """What all of them can do."""

    def step(self) -> None: ...

    def close(self) -> None: ...


def _connected(address: tuple[str, int], count: int) -> list[socket.socket]:
    """As many as the node takes."""
    made = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            made.append(socket.create_connection(address, timeout=TIMEOUT_S))
    for one in made:
        one.setblocking(False)
    return made


class Connections:
    """Connections to a node; those that it closes are left out."""

    def __init__(self, address: tuple[str, int], count: int) -> None:
        self._address = address
        self._sockets = _connected(address, count)

    def send(self, data: bytes) -> None:
        """To each, as much as it takes now."""
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
    """They announce large frames and send a byte of them now and then."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, DRIBBLERS)
        self.send(struct.pack(">ihhi", DRIBBLED_BYTES, by_name["Produce"].key, 9, 1))

    def step(self) -> None:
        self.send(b"\0")


class Deaf(Connections):
    """They fetch much, again and again, and read nothing."""

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
    """They connect anew with each step, and send large frames that no handler takes."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, FLOODERS)
        self._frame = struct.pack(">ihhih", FLOOD_BYTES, by_name["Produce"].key, 9, 1, -1).ljust(FLOOD_BYTES + 4, b"\0")

    def step(self) -> None:
        self.send(self._frame)
        self.close()
        self._sockets = _connected(self._address, FLOODERS)
