"""The interface of a login on the server: it processes a client's tokens in turn (RFC 4422)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from kpybroker.security.principal import Principal

Preparation = Callable[[], Awaitable[None]]
"""A function that starts work that takes a while."""


class LoginRefused(Exception):
    """The token is not valid. `told` is the error message for the client; if None, it receives the default message."""

    def __init__(self, why: str, told: str | None = None) -> None:
        super().__init__(why)
        self.told = told


class Exchange(Protocol):
    """The server side of one login."""

    @property
    def principal(self) -> Principal | None:
        """The principal that has logged in; None until the login is complete."""

    @property
    def lifetime_ms(self) -> int | None:
        """The lifetime that the client's credential allows for the login; None if it has no limit."""

    def preparation(self, token: bytes) -> Preparation | None:
        """Work that must be done before `step` can process this token; None if there is none."""

    def step(self, token: bytes) -> bytes:
        """Process the client's next token, and return the server's token. Raises LoginRefused."""


class Mechanism(NamedTuple):
    """A mechanism of a listener. `lifetime_ms` is connections.max.reauth.ms, the lifetime of a login; 0 means no
    limit."""

    begin: Callable[[], Exchange]
    lifetime_ms: int = 0
