"""Logins of simulated clients with PLAIN, SCRAM, delegation tokens, or unsecured OAUTHBEARER tokens that expire."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from random import Random
from typing import NamedTuple, Protocol

from kpybroker.client.login import Renewal, exchange
from kpybroker.client.peer import Peer
from kpybroker.config.jaas import OAUTHBEARER
from kpybroker.config.login import Login
from kpybroker.errors import ErrorCode
from kpybroker.security.principal import USER
from kpybroker.security.sasl.exchange import LoginRefused
from kpybroker.security.sasl.oauthbearer import SEEN
from kpybroker.security.sasl.plain import PLAIN
from kpybroker.sim.world.history import History
from kpybroker.wire.rpc import create_delegation_token, sasl_authenticate, sasl_handshake

VERSION = 1
"""The version of SaslHandshake and SaslAuthenticate requests."""
LEFT_MS = 3000
"""A token that is valid for less than this is replaced before a login."""
CREATED_WITHIN_S = 5.0
SecretBytes = Callable[[int], bytes]


class TokenNotGiven(ConnectionError):
    """The response to CreateDelegationToken has an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)
        self.code = code


async def log_in(peer: Peer, login: Login, secret_bytes: SecretBytes) -> int:
    """Log in on an open connection. Returns the lifetime of the login in milliseconds; 0 for no limit.

    Raises LoginRefused, ConnectionError and MalformedFrame. With OAUTHBEARER, the password is the token.
    """
    if login.mechanism != OAUTHBEARER:
        return await exchange(peer, login, secret_bytes)
    told = await peer.ask("SaslHandshake", sasl_handshake.Request(mechanism=OAUTHBEARER), version=VERSION)
    if told.error_code:
        raise LoginRefused(f"error {told.error_code}")
    message = f"n,,\x01auth=Bearer {login.password}\x01\x01".encode()
    answer = await _authenticate(peer, message)
    if answer.auth_bytes:
        answer = await _authenticate(peer, SEEN)
        raise LoginRefused("a refused token was acknowledged, and the login has not failed")
    return answer.session_lifetime_ms


async def _authenticate(peer: Peer, token: bytes) -> sasl_authenticate.Response:
    request = sasl_authenticate.Request(auth_bytes=token)
    told: sasl_authenticate.Response = await peer.ask("SaslAuthenticate", request, version=VERSION)
    if told.error_code:
        raise LoginRefused(f"{told.error_message} (error {told.error_code})")
    return told


def bearer(user: str, expires_ms: int) -> Login:
    """The login with an unsecured token that expires at a time of the wall clock."""
    claims = {"sub": user, "exp": expires_ms / 1000}
    parts = (json.dumps(part, separators=(",", ":")).encode() for part in ({"alg": "none"}, claims))
    token = ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts) + "."
    return Login(OAUTHBEARER, user, token)


class Created(NamedTuple):
    """A delegation token that a client has received."""

    token_id: str
    hmac: bytes
    expires_ms: int

    def login(self, mechanism: str) -> Login:
        return Login(mechanism, self.token_id, base64.b64encode(self.hmac).decode(), by_token=True)


async def create_token(peer: Peer, *, owner: str = "", renewer: str = "", lifetime_ms: int = -1) -> Created:
    """Create a token of the logged-in user, or of `owner`. Raises TokenNotGiven, ConnectionError."""
    renewers = [create_delegation_token.CreatableRenewers(principal_type=USER, principal_name=renewer)]
    request = create_delegation_token.Request(
        owner_principal_type=USER if owner else "",
        owner_principal_name=owner,
        renewers=renewers if renewer else [],
        max_lifetime_ms=lifetime_ms,
    )
    told = await peer.ask("CreateDelegationToken", request)
    if told.error_code:
        raise TokenNotGiven(told.error_code)
    return Created(told.token_id, told.hmac, told.expiry_timestamp_ms)


class Visitor(Protocol):
    """The part of a client that a login needs."""

    @property
    def history(self) -> History: ...

    @property
    def random(self) -> Random: ...

    def wall_ms(self) -> int: ...

    async def dial(self, node_id: int) -> Peer:
        """A new connection, without a login. Raises OSError."""


class Identity(Protocol):
    """The user of a client, and how it logs in."""

    @property
    def user(self) -> str: ...

    async def login(self, client: Visitor, node_id: int) -> Login:
        """The credentials for a login now. Raises OSError."""

    def refused(self) -> None:
        """Called when a broker has refused the last login."""


class Known(NamedTuple):
    """A user with a password, for PLAIN or SCRAM."""

    user: str
    mechanism: str
    password: str

    async def login(self, client: Visitor, node_id: int) -> Login:
        return Login(self.mechanism, self.user, self.password)

    def refused(self) -> None:
        """Does nothing, because the user has no other password."""


class Bearer(NamedTuple):
    """A user with unsecured tokens: a new token for each login."""

    user: str
    lifetime_ms: int

    async def login(self, client: Visitor, node_id: int) -> Login:
        return bearer(self.user, client.wall_ms() + self.lifetime_ms)

    def refused(self) -> None:
        """Does nothing, because each login has a new token."""


class TokenHolder:
    """A user who requests delegation tokens with a password, and logs in with them through `mechanism`."""

    def __init__(self, user: str, password: str, mechanism: str, lifetime_ms: int) -> None:
        self.user = user
        self._password = password
        self._mechanism = mechanism
        self._lifetime_ms = lifetime_ms
        self._held: Created | None = None

    async def login(self, client: Visitor, node_id: int) -> Login:
        held = self._held
        if held is None or held.expires_ms - client.wall_ms() < LEFT_MS:
            held = self._held = await self._new(client, node_id)
        return held.login(self._mechanism)

    def refused(self) -> None:
        """Discard the token, because the broker does not have it yet, or considers it expired."""
        self._held = None

    async def _new(self, client: Visitor, node_id: int) -> Created:
        peer = await client.dial(node_id)
        try:
            async with asyncio.timeout(CREATED_WITHIN_S):
                await log_in(peer, Login(PLAIN, self.user, self._password), client.random.randbytes)
                await peer.negotiate()
                return await create_token(peer, lifetime_ms=self._lifetime_ms)
        except LoginRefused as refused:
            raise ConnectionError(str(refused)) from refused
        finally:
            peer.close()


class Session:
    """The login of one connection, which is renewed before it ends."""

    def __init__(self, client: Visitor, node_id: int, peer: Peer, identity: Identity) -> None:
        self._client = client
        self._node_id = node_id
        self._peer = peer
        self._identity = identity

    async def begin(self) -> None:
        """Log in, and log in again before a request that is sent after most of the session. Raises OSError."""
        lifetime_ms = await self._log_in()
        if lifetime_ms > 0:
            self._peer.renew_with(Renewal(self._again, lifetime_ms).before)

    async def _again(self) -> int:
        lifetime_ms = await self._log_in()
        self._client.history.count("logins renewed")
        return lifetime_ms

    async def _log_in(self) -> int:
        client, identity, done = self._client, self._identity, False
        try:
            login = await identity.login(client, self._node_id)
            lifetime_ms = await log_in(self._peer, login, client.random.randbytes)
            done = True
        except LoginRefused as refused:
            identity.refused()
            raise ConnectionError(f"{identity.user} cannot log in: {refused}") from refused
        finally:
            if not done:
                self._peer.close()
        client.history.count("logins")
        return lifetime_ms
