"""Implements SASL OAUTHBEARER, the login with a bearer token (RFC 7628, KIP-255).

If a token is refused, the server first sends the error in JSON. The client acknowledges the error with one byte, and
then the login fails. As in Apache Kafka, the client may send another token instead of that byte.
"""

from __future__ import annotations

import re

from kpybroker.security.principal import USER, Principal
from kpybroker.security.sasl.bearer_tokens import NAME_MAX, TOKEN_MAX, TokenCheck, TokenRefused
from kpybroker.security.sasl.exchange import LoginRefused, Preparation

SEEN = b"\x01"
"""A client's acknowledgement that its token was refused."""
TOKENS_MAX = 8
"""The most tokens that one login may try."""
MESSAGE_MAX = TOKEN_MAX + 8192
"""The most bytes of a client's first message. For 524,288 bytes, the regular expression below takes 40 ms."""
FIRST = re.compile(
    r"n,(?:a=((?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+))?,\x01((?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
AUTH = re.compile(r"(\w+) +([-_~+/.A-Za-z0-9]+=*)", re.ASCII)
Asked = tuple[str, str]


class OAuthBearerExchange:
    """One login with a bearer token."""

    def __init__(self, tokens: TokenCheck) -> None:
        self._tokens = tokens
        self._refused: TokenRefused | None = None
        """The reason for the last refusal, which the client has received but not acknowledged."""
        self._tried = 0
        self._principal: Principal | None = None
        self._lifetime_ms: int | None = None

    @property
    def principal(self) -> Principal | None:
        return self._principal

    @property
    def lifetime_ms(self) -> int | None:
        return self._lifetime_ms

    def preparation(self, token: bytes) -> Preparation | None:
        return self._tokens.preparation()

    def step(self, token: bytes) -> bytes:
        """The response to a client's message; empty if its token is accepted. Raises LoginRefused."""
        refused, self._refused = self._refused, None
        if refused is not None and token == SEEN:
            raise LoginRefused(f"the token is refused: {refused}", refused.answer)
        self._tried += 1
        if self._tried > TOKENS_MAX:
            raise LoginRefused(f"more than {TOKENS_MAX} tokens in one login")
        wanted, bearer = _first_message(token)
        try:
            login = self._tokens.check(bearer)
        except TokenRefused as refused:
            self._refused = refused
            return refused.answer.encode()
        if wanted and wanted != login.name:
            raise LoginRefused(
                f"the authorization id {wanted!r} is not the name in the token, {login.name!r}",
                f"Authentication failed: Client requested an authorization id ({wanted}) that is different from the "
                f"token's principal name ({login.name})",
            )
        self._principal, self._lifetime_ms = Principal(USER, login.name), login.lifetime_ms
        return b""


def _first_message(message: bytes) -> Asked:
    """The authorization id, which may be empty, and the token. Extensions are parsed, but have no effect."""
    if len(message) > MESSAGE_MAX:
        raise LoginRefused(f"the client's first message has more than {MESSAGE_MAX} bytes")
    try:
        form = FIRST.fullmatch(message.decode("ascii"))
    except UnicodeDecodeError:
        form = None
    if form is None:
        raise LoginRefused("the client's first message does not have the form of RFC 7628")
    pairs = dict(pair.split("=", 1) for pair in form[2].split("\x01")[:-1])
    auth = AUTH.fullmatch(pairs.get("auth", ""))
    if auth is None or auth[1].lower() != "bearer":
        raise LoginRefused("the client's first message has no auth=Bearer <token>")
    wanted = form[1] or ""
    if len(wanted) > NAME_MAX:
        raise LoginRefused(f"the authorization id has more than {NAME_MAX} characters")
    return wanted, auth[2]
