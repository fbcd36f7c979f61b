"""One login: a client's tokens, and how the mechanism answers them (RFC 4422)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from kpybroker.security.principal import Principal

Preparation = Callable[[], Awaitable[None]]
"""Work that takes a while. It begins when this is called."""


class LoginRefused(Exception):
    """The token is not valid. `told` is the error message for the client; None for the default message."""

    def __init__(self, why: str, told: str | None = None) -> None:
        super().__init__(why)
        self.told = told


class Exchange(Protocol):
    """The server's side of one login."""

    @property
    def principal(self) -> Principal | None:
        """Who has logged in; None until the login is complete."""

    @property
    def lifetime_ms(self) -> int | None:
        """How long the client's credential lets it stay logged in; None if it has no limit."""

    def preparation(self, token: bytes) -> Preparation | None:
        """What has to be done before `step` can answer this token; None if nothing."""

    def step(self, token: bytes) -> bytes:
        """Answer the client's next token. Raises LoginRefused."""


class Mechanism(NamedTuple):
    """A mechanism of a listener. `lifetime_ms` is connections.max.reauth.ms: how long a login is valid; 0 means no
    limit."""

    begin: Callable[[], Exchange]
    lifetime_ms: int = 0
