"""What one connection has done, as the server sees it once a second: bytes that come and that leave."""

from __future__ import annotations

FRAME_PATIENCE_S = 30.0
"""How fast a frame has to come to keep its memory once others wait for some: at a rate at which it takes so long.
Kafka's clients give a request up after `request.timeout.ms`, by default as long."""
WINDOW_S = 3.0
"""The time over which that is measured."""
DRIBBLE_BYTES = 1024
"""Half a frame that gets fewer bytes in a second does not keep its connection from being idle."""


class Activity:
    """Times are those of the loop, in seconds."""

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
        """Nothing that counts has come since then."""
        self.stuck_since = now
        """Nothing that waits to be sent has left since then."""
        self.unsent_bytes = 0
        self.is_slow = False
        """Half a frame is here, and it came too slowly to be here within FRAME_PATIENCE_S."""
        self._received_bytes = self._sent_bytes = 0
        self._frame_since = now
        self._frame_bytes = 0

    def count(self, received_bytes: int, sent_bytes: int) -> None:
        """So much has come and was handed over to be sent."""
        self._received_bytes += received_bytes
        self._sent_bytes += sent_bytes

    def look(self, now: float, half_of_bytes: int, unsent_bytes: int) -> None:
        """Judge the traffic since the last look.

        `half_of_bytes`: the size of the frame of which a part is here and the rest would be read; 0 for none.
        """
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
