"""Checks unsigned tokens, in which `alg` is `none` and the third part is empty (KIP-255). For development only."""

from __future__ import annotations

from collections.abc import Callable
from math import floor

from kpybroker.config.oauth_settings import UnsecuredTokens
from kpybroker.security.sasl.bearer_tokens import (
    BearerLogin,
    Json,
    TokenRefused,
    checked_name,
    lifetime_ms,
    number,
    parse_object,
    parts_of,
)


class UnsecuredCheck:
    """The rules of a listener that accepts unsigned tokens. `wall_ms` returns the time by the wall clock."""

    def __init__(self, rules: UnsecuredTokens, wall_ms: Callable[[], int]) -> None:
        self._rules = rules
        self._wall_ms = wall_ms

    def preparation(self) -> None:
        return None

    def check(self, token: str) -> BearerLogin:
        """Check a token. Raises TokenRefused."""
        parts = parts_of(token)
        if parts.header.get("alg") != "none" or parts.signature:
            raise TokenRefused("this listener accepts only unsecured tokens, with alg none and without a signature")
        claims, now_ms = parse_object(parts.payload), self._wall_ms()
        name = checked_name(self._rules.principal_claim, claims.get(self._rules.principal_claim))
        ends_s = self._check_times(claims, now_ms)
        self._check_scope(claims)
        return BearerLogin(name, lifetime_ms(floor(ends_s * 1000 + 0.5), now_ms))

    def _check_times(self, claims: Json, now_ms: int) -> float:
        """The time at which the token expires, in seconds since the epoch. Raises TokenRefused."""
        issued_s, ends_s = number(claims, "iat"), number(claims, "exp")
        if ends_s is None:
            raise TokenRefused("exp is absent")
        if issued_s is not None and 1000 * issued_s > now_ms + self._rules.clock_skew_ms:
            raise TokenRefused("iat is in the future")
        if now_ms - self._rules.clock_skew_ms >= 1000 * ends_s:
            raise TokenRefused("it has expired")
        if issued_s is not None and ends_s <= issued_s:
            raise TokenRefused("exp is not after iat")
        return ends_s

    def _check_scope(self, claims: Json) -> None:
        """Check the scope. As in Apache Kafka, a string is one scope even if it contains blanks, and so is each element
        of a list."""
        found = claims.get(self._rules.scope_claim)
        if not isinstance(found, str | list | None):
            raise TokenRefused(f"{self._rules.scope_claim} is neither a string nor a list")
        items = found if isinstance(found, list) else [found]
        scopes = {item.strip() for item in items if isinstance(item, str)}
        if not scopes.issuperset(self._rules.required_scope):
            raise TokenRefused("it lacks a scope", f"[{', '.join(self._rules.required_scope)}]")
