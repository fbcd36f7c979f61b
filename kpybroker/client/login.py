"""The client's side of a login: SaslHandshake, then the tokens of the mechanism (KIP-43, KIP-152)."""

from __future__ import annotations

import secrets

from kpybroker.client.peer import Peer
from kpybroker.config.login import Login
from kpybroker.errors import ErrorCode, MalformedFrame
from kpybroker.security.sasl.exchange import LoginRefused
from kpybroker.security.sasl.plain import PLAIN, plain_token
from kpybroker.security.sasl.scram import MECHANISMS, ScramClient
from kpybroker.wire.rpc import sasl_authenticate, sasl_handshake

NONCE_BYTES = 18
VERSION = 1
"""Of both requests: every broker since Apache Kafka 2.2 serves it, and versions are negotiated after the login."""


async def log_in(peer: Peer, login: Login) -> None:
    """Log in on a new connection. A failure or cancellation closes it. Raises ConnectionError with the reason."""
    done = False
    try:
        await _exchange(peer, login)
        done = True
    except (LoginRefused, MalformedFrame) as refused:
        raise ConnectionError(f"the login of {login.user!r} with {login.mechanism} failed: {refused}") from refused
    finally:
        if not done:
            peer.close()


async def _exchange(peer: Peer, login: Login) -> None:
    wanted = sasl_handshake.Request(mechanism=login.mechanism)
    told = await peer.ask("SaslHandshake", wanted, version=VERSION)
    if told.error_code == ErrorCode.ILLEGAL_SASL_STATE:
        raise LoginRefused("the listener has no logins; its security protocol is not SASL_PLAINTEXT or SASL_SSL")
    if told.error_code:
        raise LoginRefused(f"the listener offers {', '.join(told.mechanisms)} (error {told.error_code})")
    if login.mechanism == PLAIN:
        await _token(peer, plain_token(login.user, login.password))
        return
    nonce = secrets.token_urlsafe(NONCE_BYTES)
    client = ScramClient(MECHANISMS[login.mechanism], login.user, login.password, nonce)
    client.check(await _token(peer, client.final(await _token(peer, client.first()))))


async def _token(peer: Peer, token: bytes) -> bytes:
    """The answer to a token. Raises LoginRefused."""
    told = await peer.ask("SaslAuthenticate", sasl_authenticate.Request(auth_bytes=token), version=VERSION)
    if told.error_code:
        raise LoginRefused(f"{told.error_message or 'refused'} (error {told.error_code})")
    return bytes(told.auth_bytes)
