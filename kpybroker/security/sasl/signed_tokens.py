"""Checks tokens that an identity provider has signed (KIP-768).

The signature is checked before the claims are parsed. The rules are those of Apache Kafka, and some may be surprising:
for example, a token that names an audience is refused if the listener expects none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kpybroker.config.oauth_settings import SignedTokens
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
from kpybroker.security.sasl.exchange import Preparation
from kpybroker.security.sasl.key_sets import ALGORITHMS, KeySet, is_signed_by


class Keys(Protocol):
    """The current keys of an identity provider."""

    @property
    def current(self) -> KeySet: ...

    def preparation(self) -> Preparation | None:
        """Work that must be done to bring `current` up to date; None if there is none."""

    def missing(self, kid: str) -> None:
        """Called when a token names a missing key, which may be a new key."""


class SignedCheck:
    """The rules of a listener that trusts an identity provider. `wall_ms` returns the time by the wall clock."""

    def __init__(self, rules: SignedTokens, keys: Keys, wall_ms: Callable[[], int]) -> None:
        self._rules = rules
        self._keys = keys
        self._wall_ms = wall_ms

    def preparation(self) -> Preparation | None:
        return self._keys.preparation()

    def check(self, token: str) -> BearerLogin:
        """Check a token. Raises TokenRefused."""
        parts = parts_of(token)
        header = parts.header
        self._check_header(header)
        key = self._keys.current.find(header)
        if key is None:
            if header.get("kid") is not None:
                self._keys.missing(header["kid"])
            raise TokenRefused("no known key fits its header")
        if not is_signed_by(key, header["alg"], parts.signed, parts.signature):
            raise TokenRefused("its signature is wrong")
        claims, now_ms = parse_object(parts.payload), self._wall_ms()
        self._check_audience(claims)
        self._check_issuer(claims)
        self._check_texts(claims)
        ends_s = self._check_times(claims, now_ms // 1000)
        name = checked_name(self._rules.sub_claim, claims.get(self._rules.sub_claim)).strip()
        return BearerLogin(name, lifetime_ms(ends_s * 1000, now_ms))

    def _check_header(self, header: Json) -> None:
        if header.get("alg") not in ALGORITHMS:
            raise TokenRefused(f"it is not signed with one of {', '.join(ALGORITHMS)}")
        if "crit" in header or header.get("b64", True) is not True:  # RFC 7515, RFC 7797
            raise TokenRefused("its header requires an extension (crit or b64) that is not supported")
        if not all(isinstance(header.get(name), str | None) for name in ("kid", "x5t", "x5t#S256")):
            raise TokenRefused("kid, x5t or x5t#S256 in its header is not a string")

    def _check_audience(self, claims: Json) -> None:
        found, expected = claims.get("aud"), self._rules.audiences
        if found is None and not expected:
            return
        named = [found] if isinstance(found, str) else found
        if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
            raise TokenRefused("aud is absent, or neither a string nor a list of strings")
        if not any(each in expected for each in named):
            raise TokenRefused(
                "aud is not among sasl.oauthbearer.expected.audience"
                if expected
                else "it names an audience, but sasl.oauthbearer.expected.audience is not set"
            )

    def _check_issuer(self, claims: Json) -> None:
        if self._rules.issuer is not None and claims.get("iss") != self._rules.issuer:
            raise TokenRefused("iss is not sasl.oauthbearer.expected.issuer")

    def _check_texts(self, claims: Json) -> None:
        """Check the types of claims that may be absent and that have no effect here."""
        for name in ("iss", "sub", "jti"):
            if not isinstance(claims.get(name), str | None):
                raise TokenRefused(f"{name} is not a string")
        found = claims.get(self._rules.scope_claim)
        if not isinstance(found, str | list):
            return
        scopes = [
            each.strip() if isinstance(each, str) else "" for each in ([found] if isinstance(found, str) else found)
        ]
        if not all(scopes) or len(set(scopes)) != len(scopes):
            raise TokenRefused(f"{self._rules.scope_claim} has an empty or repeated scope")

    def _check_times(self, claims: Json, now_s: int) -> int:
        """The time at which the token expires, in whole seconds since the epoch. Raises TokenRefused."""
        found = {name: number(claims, name) for name in ("exp", "iat", "nbf")}
        ends, issued, begins = (None if each is None else int(each) for each in found.values())
        if ends is None or issued is None:
            raise TokenRefused("exp or iat is absent")
        skew = self._rules.clock_skew_seconds
        if now_s - skew >= ends:
            raise TokenRefused("it has expired")
        if ends < issued or (begins is not None and ends < begins):
            raise TokenRefused("exp is before iat or nbf")
        if begins is not None and now_s + skew < begins:
            raise TokenRefused("nbf is in the future")
        if ends < 0 or issued < 0:
            raise TokenRefused("exp or iat is negative")
        return ends
