"""Implements SASL PLAIN, with which the client sends its password in clear text (RFC 4616, KIP-43)."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from kpybroker.security.principal import USER, Principal
from kpybroker.security.sasl.exchange import LoginRefused

PLAIN = "PLAIN"
INVALID = "Authentication failed: Invalid username or password"
TOKENS = 3


class PlainExchange:
    """The server side of one login. `users` has the passwords by user name."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self._principal: Principal | None = None

    @property
    def principal(self) -> Principal | None:
        return self._principal

    @property
    def lifetime_ms(self) -> None:
        return None

    def preparation(self, token: bytes) -> None:
        return None

    def step(self, token: bytes) -> bytes:
        """Check `authorization id NUL name NUL password`. Returns an empty token. Raises LoginRefused."""
        parts = token.split(b"\0")
        if self._principal is not None or len(parts) != TOKENS:
            raise _told(f"Invalid SASL/PLAIN response: expected {TOKENS} tokens, got {min(len(parts), TOKENS + 1)}")
        asked, name, password = (part.decode("utf-8", "replace") for part in parts)
        if not name:
            raise _told("Authentication failed: username not specified")
        if not password:
            raise _told("Authentication failed: password not specified")
        expected = self._users.get(name)
        is_right = hmac.compare_digest((expected or "").encode("utf-8", "replace"), password.encode())
        if expected is None or not is_right:
            raise _told(INVALID)
        if asked and asked != name:
            raise _told("Authentication failed: Client requested an authorization id that is different from username")
        self._principal = Principal(USER, name)
        return b""


def plain_token(user: str, password: str) -> bytes:
    """The token that a client sends."""
    return f"\0{user}\0{password}".encode()


def _told(text: str) -> LoginRefused:
    return LoginRefused(text, text)
