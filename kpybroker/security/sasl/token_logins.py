"""Derives the credentials of delegation tokens for logins (KIP-48), when a client first logs in with the token.

The derivation takes milliseconds, so it runs on a thread. The credential is kept for later logins with the same token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from hashlib import pbkdf2_hmac

from kpybroker.security.delegation_tokens import DelegationToken, token_password
from kpybroker.security.sasl.exchange import Preparation
from kpybroker.security.sasl.scram import TokenLogin
from kpybroker.security.scram import (
    DIGESTS,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_of,
    made_up_salt,
)

CREDENTIALS_MAX = 10_000
"""The most credentials that are kept, with a few hundred bytes each. The least recently used one is evicted first."""
Tokens = Callable[[], Mapping[str, DelegationToken]]
"""Returns the current tokens by id."""
OffLoop = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs work on a thread."""
Asked = tuple[ScramMechanism, str]


class TokenLogins:
    """The tokens of one listener. `wall_ms` returns the time by the wall clock.

    `salts` is the secret from which the salts are derived. The salts of unknown names are also derived from it, so that
    a response does not reveal whether a token exists.
    """

    def __init__(
        self, secret_key: str, tokens: Tokens, salts: bytes, wall_ms: Callable[[], int], off_loop: OffLoop
    ) -> None:
        self._secret_key = secret_key
        self._tokens = tokens
        self._salts = salts
        self._wall_ms = wall_ms
        self._off_loop = off_loop
        self._credentials: dict[Asked, ScramCredential] = {}
        self._deriving: dict[Asked, asyncio.Task[None]] = {}

    def derivation(self, mechanism: ScramMechanism, token_id: str) -> Preparation | None:
        """The derivation of a token's credential. None if the credential is already derived, or if the token is not
        valid."""
        asked = mechanism, token_id
        if asked in self._credentials or self._valid(token_id) is None:
            return None
        return partial(self._derived, asked)

    def find(self, mechanism: ScramMechanism, token_id: str) -> TokenLogin | None:
        """The login of a token; None if the token is not valid, or its credential has not been derived."""
        token, credential = self._valid(token_id), self._credentials.pop((mechanism, token_id), None)
        if credential is None:
            return None
        self._credentials[mechanism, token_id] = credential  # so that it is evicted last
        if token is None or token.login is None:
            return None
        left_ms = min(token.expires_ms, token.max_ms) - self._wall_ms()
        return TokenLogin(credential, token.login, max(left_ms, 1))

    def _valid(self, token_id: str) -> DelegationToken | None:
        token = self._tokens().get(token_id)
        return None if token is None or token.login is None or token.has_expired(self._wall_ms()) else token

    async def _derived(self, asked: Asked) -> None:
        """Wait for the derivation. Logins that wait at the same time share one derivation."""
        deriving = self._deriving.get(asked)
        if deriving is None:
            deriving = self._deriving[asked] = asyncio.get_running_loop().create_task(self._derive(asked))
            deriving.add_done_callback(lambda _: self._deriving.pop(asked))
        await asyncio.shield(deriving)

    async def _derive(self, asked: Asked) -> None:
        mechanism, token_id = asked
        password = token_password(self._secret_key, token_id).encode()
        salt = made_up_salt(self._salts, mechanism, token_id)
        salted: list[bytes] = []
        await self._off_loop(lambda: salted.append(pbkdf2_hmac(DIGESTS[mechanism], password, salt, ITERATIONS_MIN)))
        self._credentials[asked] = credential_of(mechanism, salt, salted[0], ITERATIONS_MIN)
        if len(self._credentials) > CREDENTIALS_MAX:
            del self._credentials[next(iter(self._credentials))]
