"""Delegation tokens: their metadata, and the secret with which a client logs in (KIP-48, KIP-373)."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Container
from typing import NamedTuple

from kpybroker.security.principal import USER, Principal

HMAC_DIGEST = "sha512"


class DelegationToken(NamedTuple):
    """One token, without its secret. Principals are strings such as `User:ann`; times are milliseconds since the
    epoch."""

    token_id: str
    owner: str
    """The principal of clients that log in with the token."""
    requester: str
    """The principal that requested the token."""
    renewers: tuple[str, ...]
    """Principals besides the owner that may renew the token and make it expire."""
    issued_ms: int
    max_ms: int
    """The token cannot be renewed beyond this time."""
    expires_ms: int

    def has_expired(self, now_ms: int) -> bool:
        """Whether the token is no longer valid."""
        return self.max_ms < now_ms or self.expires_ms < now_ms

    def may_renew(self, principal: str) -> bool:
        """Whether this principal may renew the token and make it expire."""
        return principal == self.owner or principal in self.renewers

    def is_of_any(self, principals: Container[str]) -> bool:
        """Whether one of these principals owns the token, requested it or may renew it."""
        return any(each in principals for each in (self.owner, self.requester, *self.renewers))

    @property
    def login(self) -> Principal | None:
        """The principal of a client that logs in with the token. None if the owner is not a user, because only users
        log in."""
        kind, name = parts_of(self.owner)
        return Principal(kind, name, token_authenticated=True) if kind == USER else None


def parts_of(principal: str) -> tuple[str, str]:
    """The type and the name in the string form of a principal."""
    kind, _, name = principal.partition(":")
    return kind, name


def token_hmac(secret_key: str, token_id: str) -> bytes:
    """The secret of a token. Only the nodes, which have the key, can compute it; a client receives it from a node."""
    return hmac.digest(secret_key.encode(), token_id.encode(), HMAC_DIGEST)


def token_password(secret_key: str, token_id: str) -> str:
    """The secret as text, which a client uses as its password."""
    return base64.b64encode(token_hmac(secret_key, token_id)).decode()
