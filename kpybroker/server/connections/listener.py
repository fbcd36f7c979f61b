"""A listener as its connections see it."""

from __future__ import annotations

from dataclasses import dataclass

from kpybroker.call import BROKER


@dataclass(slots=True)
class ListenerState:
    """Name and side of a listener. Until it is open, requests wait unread."""

    name: str = "PLAINTEXT"
    side: str = BROKER
    is_open: bool = False

    def open(self) -> None:
        """Serve requests from now on."""
        self.is_open = True
