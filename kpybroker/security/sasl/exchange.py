"""One login: tokens of a client, and what the mechanism says to them (RFC 4422)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class LoginRefused(Exception):
    """The token is not valid. `told` is the text for the client; None for the text that all mechanisms share."""

    def __init__(self, why: str, told: str | None = None) -> None:
        super().__init__(why)
        self.told = told


class Exchange(Protocol):
    """The server's side of one login."""

    @property
    def user(self) -> str | None:
        """Who has logged in; None until the login is complete."""

    def step(self, token: bytes) -> bytes:
        """Answer the client's next token. Raises LoginRefused."""


class Mechanism(NamedTuple):
    """A mechanism of a listener. `lifetime_ms` is connections.max.reauth.ms: for how long a login is valid, 0 for
    ever."""

    begin: Callable[[], Exchange]
    lifetime_ms: int = 0
