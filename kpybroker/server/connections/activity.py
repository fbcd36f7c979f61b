"""The traffic of one connection. The server checks it once a second."""

from __future__ import annotations

FRAME_PATIENCE_S = 30.0
"""While other connections wait for memory, a frame keeps its buffer only if all of it would arrive within this time.
Kafka's clients abandon a request after `request.timeout.ms`, which has the same default."""
WINDOW_S = 3.0
"""The time over which the rate of a partial frame is measured."""
DRIBBLE_BYTES = 1024
"""A connection that receives fewer bytes of its partial frame per second than this counts as idle."""


class Activity:
    """The traffic of one connection. All times are seconds of the event loop's clock."""

    __slots__ = (
        "_frame_bytes",
        "_frame_since",
        "_received_bytes",
        "_sent_bytes",
        "is_slow",
        "quiet_since",
        "stuck_since",
        "unsent_bytes",
    )

    def __init__(self, now: float) -> None:
        self.quiet_since = now
        """The time since which the connection has been idle (see DRIBBLE_BYTES)."""
        self.stuck_since = now
        """The time since which none of the unsent bytes have been sent."""
        self.unsent_bytes = 0
        self.is_slow = False
        """Whether a partial frame arrives too slowly to be complete within FRAME_PATIENCE_S."""
        self._received_bytes = self._sent_bytes = 0
        self._frame_since = now
        self._frame_bytes = 0

    def count(self, received_bytes: int, sent_bytes: int) -> None:
        """Add received bytes, and bytes passed to the transport."""
        self._received_bytes += received_bytes
        self._sent_bytes += sent_bytes

    def look(self, now: float, half_of_bytes: int, unsent_bytes: int) -> None:
        """Evaluate the traffic since the last check. `half_of_bytes` is the full size of the partial frame that has
        arrived, or 0 if there is none."""
        received, self._received_bytes = self._received_bytes, 0
        if received >= DRIBBLE_BYTES or (received and not half_of_bytes):
            self.quiet_since = now
        if not half_of_bytes:
            self._frame_since, self._frame_bytes, self.is_slow = now, 0, False
        else:
            self._frame_bytes += received
            if now - self._frame_since >= WINDOW_S:
                self.is_slow = self._frame_bytes / half_of_bytes < (now - self._frame_since) / FRAME_PATIENCE_S
                self._frame_since, self._frame_bytes = now, 0
        if not unsent_bytes or unsent_bytes < self.unsent_bytes + self._sent_bytes:
            self.stuck_since = now
        self._sent_bytes = 0
        self.unsent_bytes = unsent_bytes
