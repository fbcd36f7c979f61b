"""Parses tokens in the compact form of a JWS: three parts in base64url, the first two in JSON (RFC 7515, RFC 7519).

The input is from a client that has not authenticated yet. Any input is either parsed or refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from typing import Any, NamedTuple, NoReturn, Protocol

from kpybroker.security.sasl.exchange import Preparation

TOKEN_MAX = 65_536
"""The most characters of a token. Apache Kafka only limits the whole request, to 524,288 bytes."""
NAME_MAX = 1024
"""The most characters of a name."""
PARTS = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]*)")
LIFETIME_MAX_MS = ((1 << 63) - 1) // 1_000_000
"""292 years. Apache Kafka counts in nanoseconds, and fails for longer times."""
Json = dict[str, Any]


class TokenRefused(Exception):
    """The reason why a token is refused, without any part of the token. `scope` is the scope that the token lacks."""

    def __init__(self, why: str, scope: str | None = None) -> None:
        super().__init__(why)
        self.scope = scope

    @property
    def answer(self) -> str:
        """The response to the client (RFC 7628, 3.2.2)."""
        if self.scope is None:
            return '{"status":"invalid_token"}'
        return f'{{"status":"insufficient_scope", "scope":"{self.scope}"}}'


class BearerLogin(NamedTuple):
    """The user of a token, and the lifetime of the login; 0 if the token has expired, but within the clock skew."""

    name: str
    lifetime_ms: int


class TokenCheck(Protocol):
    """The rules of a listener for tokens."""

    def preparation(self) -> Preparation | None:
        """Work that must be done before `check`; None if there is none."""

    def check(self, token: str) -> BearerLogin:
        """Check a token. Raises TokenRefused."""


class Parts(NamedTuple):
    """The parts of a token. `signed` is the part that the signature covers. The claims must not be trusted yet."""

    header: Json
    signed: bytes
    payload: bytes
    signature: bytes

    def __repr__(self) -> str:
        return "Parts()"


def parts_of(token: str) -> Parts:
    """Split a token into its parts. The payload is not parsed. Raises TokenRefused."""
    if len(token) > TOKEN_MAX:
        raise TokenRefused(f"it has more than {TOKEN_MAX} characters")
    form = PARTS.fullmatch(token)
    if form is None:
        raise TokenRefused("it does not have the three parts of a signed token")
    header, payload, signature = (_decoded(part) for part in form.groups())
    return Parts(parse_object(header), f"{form[1]}.{form[2]}".encode(), payload, signature)


def parse_object(data: bytes) -> Json:
    """Parse a JSON object in which no name occurs twice. Raises TokenRefused."""
    try:
        found = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise TokenRefused("a part is not JSON") from None
    if not isinstance(found, dict):
        raise TokenRefused("a part is not a JSON object")
    return found


def number(claims: Json, name: str) -> float | None:
    """A claim that is a time in seconds, which may have a fraction; None if it is absent. Raises TokenRefused."""
    found = claims.get(name)
    if found is None:
        return None
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    if not is_number or not abs(found) < LIFETIME_MAX_MS or not math.isfinite(found):
        raise TokenRefused(f"{name} is not a time")
    return float(found)


def checked_name(claim: str, found: object) -> str:
    """The name in a claim. Raises TokenRefused."""
    if not isinstance(found, str) or not found.strip():
        raise TokenRefused(f"{claim} is not a name")
    if len(found) > NAME_MAX:
        raise TokenRefused(f"{claim} has more than {NAME_MAX} characters")
    if any("\ud800" <= character <= "\udfff" for character in found):
        raise TokenRefused(f"{claim} contains half of a surrogate pair")
    return found


def lifetime_ms(ends_ms: int, now_ms: int) -> int:
    """The remaining lifetime of a token, 0 if it has expired. Raises TokenRefused if it exceeds LIFETIME_MAX_MS."""
    left_ms = max(ends_ms - now_ms, 0)
    if left_ms > LIFETIME_MAX_MS:
        raise TokenRefused("it expires in more than 292 years")
    return left_ms


def _decoded(part: str) -> bytes:
    try:
        return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise TokenRefused("a part is not base64") from None


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


def _no_number(_: str) -> NoReturn:
    raise ValueError("no number")
