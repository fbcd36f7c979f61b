"""The client side of a login: SaslHandshake, then the tokens of the mechanism (KIP-43, KIP-152).

If the broker limits the session's lifetime, the client logs in again before the session ends (KIP-368).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from secrets import token_bytes

from kpybroker.client.peer import Peer
from kpybroker.config.login import Login
from kpybroker.errors import ErrorCode, MalformedFrame
from kpybroker.security.sasl.exchange import LoginRefused
from kpybroker.security.sasl.plain import PLAIN, plain_token
from kpybroker.security.sasl.scram import BY_TOKEN, MECHANISMS, ScramClient, new_nonce
from kpybroker.wire.rpc import sasl_authenticate, sasl_handshake

OF_LOGINS = ("SaslHandshake", "SaslAuthenticate")
RENEWED_AFTER = 0.85
"""The part of a session's lifetime after which the login is renewed, as in Apache Kafka's clients."""
AGAIN_AFTER_S = 1.1
"""A broker accepts one renewal per second."""
VERSION = 1
"""The version of both requests. Every broker since Apache Kafka 2.2 serves it; other versions are negotiated only after
the login."""


class LoginFailed(ConnectionError):
    """The broker refused the login."""


async def log_in(peer: Peer, login: Login, secret_bytes: Callable[[int], bytes] = token_bytes) -> None:
    """Log in on a new connection, and again before the login ends. A failure or cancellation closes the connection.

    `secret_bytes` is the method of a World.

    Raises LoginFailed with the reason, and ConnectionError.
    """
    lifetime_ms = await _log_in(peer, login, secret_bytes)
    if lifetime_ms > 0:
        peer.renew_with(Renewal(partial(_log_in, peer, login, secret_bytes), lifetime_ms).before)


class Renewal:
    """Logs in again on a connection after most of the session's lifetime (KIP-368).

    The broker responds to earlier requests first; later requests wait until the login is renewed. `again` logs in and
    returns the lifetime of the login in milliseconds; 0 for no limit.
    """

    def __init__(self, again: Callable[[], Awaitable[int]], lifetime_ms: int) -> None:
        self._again = again
        self._due = self._after(lifetime_ms)
        self._renewing: asyncio.Task[None] | None = None

    async def before(self, name: str) -> None:
        """Renew the login if it is due, unless this request is part of a renewal. Raises ConnectionError."""
        if name in OF_LOGINS:
            return
        if self._renewing is None and asyncio.get_running_loop().time() >= self._due:
            self._renewing = asyncio.get_running_loop().create_task(self._renew())
            self._renewing.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._renewing is not None:
            # a cancelled caller must not cancel the renewal, because other callers also wait for it
            await asyncio.shield(self._renewing)

    async def _renew(self) -> None:
        try:
            self._due = self._after(await self._again())
        finally:
            self._renewing = None

    def _after(self, lifetime_ms: int) -> float:
        if lifetime_ms <= 0:
            return math.inf
        return asyncio.get_running_loop().time() + max(lifetime_ms / 1000 * RENEWED_AFTER, AGAIN_AFTER_S)


async def _log_in(peer: Peer, login: Login, secret_bytes: Callable[[int], bytes]) -> int:
    done = False
    try:
        lifetime_ms = await exchange(peer, login, secret_bytes)
        done = True
    except (LoginRefused, MalformedFrame) as refused:
        raise LoginFailed(f"the login of {login.user!r} with {login.mechanism} failed: {refused}") from refused
    finally:
        if not done:
            peer.close()
    return lifetime_ms


async def exchange(peer: Peer, login: Login, secret_bytes: Callable[[int], bytes]) -> int:
    """Log in with PLAIN or SCRAM. Returns the lifetime of the login in milliseconds; 0 for no limit.

    Raises LoginRefused, ConnectionError and MalformedFrame; the connection stays open.
    """
    wanted = sasl_handshake.Request(mechanism=login.mechanism)
    told = await peer.ask("SaslHandshake", wanted, version=VERSION)
    if told.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise LoginRefused("the listener does not use SASL; connect to one with SASL_PLAINTEXT or SASL_SSL")
    if told.error_code:
        raise LoginRefused(f"the listener offers {', '.join(told.mechanisms)} (error {told.error_code})")
    if login.mechanism == PLAIN:
        return (await _token(peer, plain_token(login.user, login.password))).session_lifetime_ms
    mechanism, extensions = MECHANISMS[login.mechanism], BY_TOKEN if login.by_token else ""
    client = ScramClient(mechanism, login.user, login.password, new_nonce(secret_bytes), extensions=extensions)
    last = await _token(peer, client.final((await _token(peer, client.first())).auth_bytes))
    client.check(last.auth_bytes)
    return last.session_lifetime_ms


async def _token(peer: Peer, token: bytes) -> sasl_authenticate.Response:
    """Send a token and return the broker's token. Raises LoginRefused."""
    request = sasl_authenticate.Request(auth_bytes=token)
    told: sasl_authenticate.Response = await peer.ask("SaslAuthenticate", request, version=VERSION)
    if told.error_code:
        raise LoginRefused(f"{told.error_message or 'refused'} (error {told.error_code})")
    return told
