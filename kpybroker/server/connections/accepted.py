"""One accepted connection: its peer, its listener, its traffic, and its state for the connection limits."""

from __future__ import annotations

import asyncio
from typing import cast

from kpybroker.call import Reply
from kpybroker.server.connections.activity import Activity
from kpybroker.server.connections.listener import ListenerState


class Accepted(asyncio.BufferedProtocol):
    """The part of a connection that the connection limits and the server's periodic checks use."""

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
        """Bytes since the last `take_counts`."""
        self.activity = Activity(now)
        self.is_of_a_node = False
        """Whether this connection has sent a request that only nodes of the cluster send."""
        self.on_probation = False
        """Whether this connection exceeds a limit, and stays open for a moment because it may belong to a node."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass of Transport
        address = transport.get_extra_info("peername") or ("?", 0)
        self.host = str(address[0])
        self.peer = f"{self.host}:{address[1]}"

    def count_received(self, size_bytes: int) -> None:
        """Add received bytes."""
        self.received_bytes += size_bytes

    def count_sent(self, size_bytes: int) -> None:
        """Add bytes that were passed to the transport."""
        self.sent_bytes += size_bytes

    def stop_reading(self) -> None:
        """Read no further requests."""
        self._closing = True

    def forget_transport(self) -> None:
        """Drop the reference to the transport, because the socket is closed."""
        self.transport = None

    def admitted(self, number: int) -> None:
        """Store the number under which the server has admitted the connection. It is unique in the process."""
        self.number = number

    def abort(self) -> None:
        """Close at once, without sending the remaining replies."""
        self._closing = True
        if self.transport is not None:
            self.transport.abort()

    def await_reply(self, reply: Reply) -> None:
        """Queue a reply that is not complete yet."""
        raise NotImplementedError

    def finish_event(self) -> None:
        """Continue after the data appended in this read event has been written."""
        raise NotImplementedError

    @property
    def is_closing(self) -> bool:
        """Whether no more requests are read."""
        return self._closing

    @property
    def unsent_bytes(self) -> int:
        """The bytes that the transport has not sent yet."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    @property
    def stuck_since(self) -> float:
        """The time since which no unsent byte has been sent, by the event loop's clock."""
        return self.activity.stuck_since

    @property
    def quiet_since(self) -> float:
        """The time since which nothing has been received, by the event loop's clock."""
        return self.activity.quiet_since

    def take_counts(self) -> tuple[int, int]:
        """The bytes received and sent since the last call."""
        counted = self.received_bytes, self.sent_bytes
        self.activity.count(*counted)
        self.received_bytes = self.sent_bytes = 0
        return counted

    def note_probation(self, *, began: bool) -> None:
        """Begin or end the probation of this connection."""
        self.on_probation = began

    def note_node(self) -> None:
        """Store that this connection belongs to a node of the cluster."""
        self.is_of_a_node = True
