"""Counters of one broker: plain numbers that the loop's own thread adds to."""

from __future__ import annotations


class Metrics:
    """What happened since the start. Times in milliseconds, sizes in bytes."""

    __slots__ = (
        "connections_accepted",
        "connections_refused",
        "frames_refused",
        "worst_stall_ms",
    )

    def __init__(self) -> None:
        self.connections_accepted = 0
        self.connections_refused = 0
        self.frames_refused = 0
        self.worst_stall_ms = 0.0
        """The longest time that the loop was late for its own timer."""
