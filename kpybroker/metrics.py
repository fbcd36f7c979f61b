"""Counters of one broker: plain numbers that the loop's own thread adds to."""

from __future__ import annotations


class Metrics:
    """What happened since the start. Times in milliseconds, sizes in bytes."""

    __slots__ = (
        "bytes_received",
        "bytes_sent",
        "connections_accepted",
        "connections_dropped",
        "connections_refused",
        "connections_throttled",
        "frames_refused",
        "requests_throttled",
        "worst_stall_ms",
    )

    def __init__(self) -> None:
        self.bytes_received = 0
        self.bytes_sent = 0
        """Of open connections, up to the server's last sweep."""
        self.connections_accepted = 0
        self.connections_refused = 0
        self.connections_dropped = 0
        self.connections_throttled = 0
        self.requests_throttled = 0
        self.frames_refused = 0
        self.worst_stall_ms = 0.0
        """The longest time that the loop was late for its own timer."""
