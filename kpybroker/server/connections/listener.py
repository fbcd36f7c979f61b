"""The state of a listener that its connections use."""

from __future__ import annotations

from asyncio import BaseTransport
from collections.abc import Callable
from dataclasses import dataclass

from kpybroker.call import BROKER
from kpybroker.security.principal import ANONYMOUS, Principal


@dataclass(slots=True)
class ListenerState:
    """Name and side of a listener. Until it is open, requests wait unread."""

    name: str = "PLAINTEXT"
    side: str = BROKER
    is_open: bool = False
    principal_of: Callable[[BaseTransport], Principal | None] = lambda _: ANONYMOUS
    """The principal that has opened a connection; None if the listener does not serve it."""
    counts_rates: bool = True
    """Whether a connection counts in the rate of its address when it is made; with TLS, it has counted before its
    handshake."""

    def open(self) -> None:
        """Serve requests from now on."""
        self.is_open = True
