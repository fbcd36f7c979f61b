"""Counters of one server. They are plain numbers, which only the thread of the event loop changes."""

from __future__ import annotations


class Metrics:
    """Counts since the start. Sizes are in bytes."""

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "connections_accepted",
        "connections_dropped",
        "connections_refused",
        "connections_throttled",
        "frames_refused",
        "logins_failed",
        "requests_throttled",
    )

    def __init__(self) -> None:
        self.bytes_received = 0
        self.bytes_sent = 0
        """Bytes of responses, including those of open connections up to the server's last sweep."""
        self.connections_accepted = 0
        self.connections_refused = 0
        self.connections_dropped = 0
        self.connections_throttled = 0
        self.requests_throttled = 0
        self.frames_refused = 0
        self.logins_failed = 0

    def connection_accepted(self) -> None:
        """Count a connection that was admitted."""
        self.connections_accepted += 1

    def connection_refused(self) -> None:
        """Count a connection that was closed at once, because a limit was reached or the server stops."""
        self.connections_refused += 1

    def connection_dropped(self) -> None:
        """Count a connection that was closed before all responses were sent."""
        self.connections_dropped += 1

    def connection_throttled(self) -> None:
        """Count a connection that exceeded the rate limit of its address."""
        self.connections_throttled += 1

    def request_throttled(self) -> None:
        """Count a request whose client was throttled."""
        self.requests_throttled += 1

    def frame_refused(self) -> None:
        """Count an invalid frame, which closed its connection."""
        self.frames_refused += 1

    def login_failed(self) -> None:
        """Count a login that was refused."""
        self.logins_failed += 1

    def transferred(self, received: int, sent: int) -> None:
        """Add bytes of requests and of responses."""
        self.bytes_received += received
        self.bytes_sent += sent
