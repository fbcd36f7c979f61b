"""The part of a listener's state that its connections use."""

from __future__ import annotations

from asyncio import BaseTransport
from collections.abc import Callable
from dataclasses import dataclass

from kpybroker.call import BROKER
from kpybroker.security.principal import ANONYMOUS, Principal


@dataclass(slots=True)
class ListenerState:
    """The name, the side and the state of a listener. Until it is open, requests wait."""

    name: str = "PLAINTEXT"
    side: str = BROKER
    is_open: bool = False
    principal_of: Callable[[BaseTransport], Principal | None] = lambda _: ANONYMOUS
    """Returns the principal of a new connection; None if the listener refuses it."""
    counts_rates: bool = True
    """Whether a new connection counts towards the connection rate of its address. With TLS, it has already been counted
    before the handshake."""

    def open(self) -> None:
        """Serve requests from now on."""
        self.is_open = True
