"""One accepted socket: its peer and listener, its traffic, and what the limits decided about it."""

from __future__ import annotations

import asyncio
from typing import cast

from kpybroker.call import Reply
from kpybroker.server.connections.activity import Activity
from kpybroker.server.connections.listener import ListenerState


class Accepted(asyncio.BufferedProtocol):
    """What the limits and the server's sweep know of a connection."""

    __slots__ = (
        "_closing",
        "activity",
        "host",
        "is_of_a_node",
        "listener",
        "number",
        "on_probation",
        "peer",
        "received_bytes",
        "sent_bytes",
        "transport",
    )

    def __init__(self, listener: ListenerState, now: float) -> None:
        self.listener = listener
        self.transport: asyncio.Transport | None = None
        self._closing = False
        self.number = 0
        self.peer = self.host = "?"
        self.received_bytes = self.sent_bytes = 0
        """Since the last `take_counts`."""
        self.activity = Activity(now)
        self.is_of_a_node = False
        """It has sent what only nodes of the cluster send."""
        self.on_probation = False
        """A limit of connections is reached, and this may be a node's."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it
        address = transport.get_extra_info("peername") or ("?", 0)
        self.host = str(address[0])
        self.peer = f"{self.host}:{address[1]}"

    def admitted(self, number: int) -> None:
        """The server serves it under this number, which is unique in the process."""
        self.number = number

    def abort(self) -> None:
        """Close at once; what is owed is lost."""
        self._closing = True
        if self.transport is not None:
            self.transport.abort()

    def await_reply(self, reply: Reply) -> None:
        """Queue a reply that is not complete yet."""
        raise NotImplementedError

    def finish_event(self) -> None:
        """What was appended in this read event has been written."""
        raise NotImplementedError

    @property
    def is_closing(self) -> bool:
        """Nothing more is read."""
        return self._closing

    @property
    def unsent_bytes(self) -> int:
        """What was handed over to the transport and has not left."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    @property
    def stuck_since(self) -> float:
        """Nothing of what is unsent has left since then, by the loop's clock."""
        return self.activity.stuck_since

    @property
    def quiet_since(self) -> float:
        """Nothing has come since then, by the loop's clock."""
        return self.activity.quiet_since

    def take_counts(self) -> tuple[int, int]:
        """The bytes received and sent since the last call."""
        counted = self.received_bytes, self.sent_bytes
        self.activity.count(*counted)
        self.received_bytes = self.sent_bytes = 0
        return counted

    def note_probation(self, *, began: bool) -> None:
        """It is on probation from now on, or no longer."""
        self.on_probation = began

    def note_node(self) -> None:
        """It is a node's."""
        self.is_of_a_node = True
