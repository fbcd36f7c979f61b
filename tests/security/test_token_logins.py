"""Tests of logins with delegation tokens: they need the right HMAC of a token that has not expired, and the user is the
token's owner."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.handlers import refused
from kpybroker.security.delegation_tokens import DelegationToken, token_password
from kpybroker.security.principal import Principal
from kpybroker.security.sasl import token_logins
from kpybroker.security.sasl.exchange import LoginRefused, Mechanism
from kpybroker.security.sasl.scram import BY_TOKEN, MECHANISMS, ScramClient, ScramExchange
from kpybroker.security.sasl.session import LoginSession, Stage
from kpybroker.security.sasl.token_logins import TokenLogins
from kpybroker.security.scram import ScramMechanism
from tests.security.logins import Clock, handshake, response, token

KEY = "a secret of the nodes"
SALTS = b"of the listener"
SHA_256 = ScramMechanism.SCRAM_SHA_256
START_MS = 1_000_000


class Tokens:
    """The tokens of a node, with a clock that the test sets."""

    def __init__(self, *there: DelegationToken) -> None:
        self.by_id = {each.token_id: each for each in there}
        self.now_ms = START_MS
        self.derivations = 0
        self.logins = TokenLogins(KEY, lambda: self.by_id, SALTS, lambda: self.now_ms, self._off_loop)

    async def _off_loop(self, work: Callable[[], None]) -> None:
        self.derivations += 1
        await asyncio.sleep(0)
        work()

    def exchange(self, mechanism: ScramMechanism = SHA_256) -> ScramExchange:
        return ScramExchange(mechanism, lambda _: None, "server", SALTS, self.logins)

    async def log_in(self, token_id: str, password: str, mechanism: ScramMechanism = SHA_256) -> Principal:
        """Raises LoginRefused."""
        exchange = self.exchange(mechanism)
        client = ScramClient(mechanism, token_id, password, "client", extensions=BY_TOKEN)
        preparation = exchange.preparation(client.first())
        if preparation is not None:
            await preparation()
        final = client.final(exchange.step(client.first()))
        assert exchange.preparation(final) is None
        assert exchange.principal is None
        client.check(exchange.step(final))
        assert exchange.principal is not None
        return exchange.principal


def made(token_id: str = "a", owner: str = "User:ann", *, lives_ms: int = 1000) -> DelegationToken:
    return DelegationToken(token_id, owner, "User:bob", (), START_MS, START_MS + lives_ms, START_MS + lives_ms)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(MECHANISMS)),
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["a", "b"]),
    st.integers(-2, 2),
    st.sampled_from(["User:ann", "User:a,b=c:d", "Group:ann"]),
)
def test_which_tokens_log_in(mechanism: str, token_id: str, secret_of: str, past_end_ms: int, owner: str) -> None:
    """A token logs in if and only if it exists and has not expired, the HMAC belongs to it, and its owner is a user."""
    tokens = Tokens(made("a", owner), made("b", owner, lives_ms=5000))
    ends_ms = tokens.by_id[token_id].expires_ms if token_id in tokens.by_id else START_MS
    tokens.now_ms = ends_ms + past_end_ms
    may = token_id == secret_of and past_end_ms <= 0 and owner.startswith("User:")
    try:
        found = asyncio.run(tokens.log_in(token_id, token_password(KEY, secret_of), MECHANISMS[mechanism]))
    except LoginRefused:
        assert not may
    else:
        assert may
        assert str(found) == owner
        assert found.token_authenticated


def test_a_token_that_expires_after_its_derivation_does_not_log_in() -> None:
    async def play() -> None:
        tokens = Tokens(made())
        password = token_password(KEY, "a")
        assert await tokens.log_in("a", password) == Principal("User", "ann")
        tokens.now_ms = START_MS + 1001
        with pytest.raises(LoginRefused):
            await tokens.log_in("a", password)
        tokens.now_ms = START_MS
        del tokens.by_id["a"]
        with pytest.raises(LoginRefused):
            await tokens.log_in("a", password)
        assert tokens.derivations == 1

    asyncio.run(play())


def test_a_credential_is_derived_once_for_each_mechanism() -> None:
    async def play() -> None:
        tokens, password = Tokens(made()), token_password(KEY, "a")
        for mechanism in MECHANISMS.values():
            await asyncio.gather(*(tokens.log_in("a", password, mechanism) for _ in range(20)))
            await tokens.log_in("a", password, mechanism)
        assert tokens.derivations == len(MECHANISMS)

    asyncio.run(play())


def test_a_cancelled_login_does_not_affect_another() -> None:
    async def play() -> None:
        tokens, password = Tokens(made()), token_password(KEY, "a")
        first, second = (asyncio.ensure_future(tokens.log_in("a", password)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == Principal("User", "ann")
        assert tokens.derivations == 1

    asyncio.run(play())


def test_cached_credentials_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_logins, "CREDENTIALS_MAX", 2)

    async def play() -> None:
        tokens = Tokens(*(made(name) for name in "abc"))
        for name, derived in (("a", 1), ("b", 2), ("a", 2), ("c", 3), ("a", 3), ("b", 4)):
            await tokens.log_in(name, token_password(KEY, name))
            assert tokens.derivations == derived, name

    asyncio.run(play())


def test_the_response_does_not_reveal_whether_a_token_exists() -> None:
    async def play() -> None:
        tokens = Tokens(made())
        await tokens.log_in("a", token_password(KEY, "a"))
        first = ScramClient(SHA_256, "a", "x", "client", extensions=BY_TOKEN).first()
        there = tokens.exchange().step(first)
        del tokens.by_id["a"]
        assert tokens.exchange().step(first) == there

    asyncio.run(play())


@pytest.mark.parametrize(
    ("reauth_ms", "lives_ms", "lasts_ms"), [(0, 700, 700), (500, 700, 500), (900, 700, 700), (0, 0, 1), (500, 0, 1)]
)
@pytest.mark.parametrize("is_bare", [False, True])
def test_a_session_ends_with_its_token(*, reauth_ms: int, lives_ms: int, lasts_ms: int, is_bare: bool) -> None:
    """The session ends earlier with connections.max.reauth.ms. A lifetime of 0 would mean no limit, so in the last
    millisecond the lifetime is 1."""

    async def play() -> None:
        tokens, clock = Tokens(made(lives_ms=lives_ms)), Clock()
        session = LoginSession({"SCRAM-SHA-256": Mechanism(tokens.exchange, reauth_ms)}, refused, clock)
        client = ScramClient(SHA_256, "a", token_password(KEY, "a"), "client", extensions=BY_TOKEN)
        session.take(handshake("SCRAM-SHA-256", 0 if is_bare else 1))

        async def told(data: bytes) -> Any:
            frame = memoryview(data) if is_bare else token(data)
            verdict = session.take(frame)
            if verdict.preparation is not None:
                assert (verdict.answer, verdict.passes, verdict.failure) == ([], False, None)
                assert session.stage is Stage.AUTHENTICATE
                await verdict.preparation()
                verdict = session.take(frame, prepared=True)
            answer = verdict.answer
            return bytes(answer[0][4:]) if is_bare else response("SaslAuthenticate", 1, answer)

        first = await told(client.first())
        last = await told(client.final(first if is_bare else first.auth_bytes))
        client.check(last if is_bare else last.auth_bytes)
        assert is_bare or last.session_lifetime_ms == lasts_ms
        assert session.ends_ms == clock.now_ms + lasts_ms
        assert session.principal == Principal("User", "ann")
        assert session.principal.token_authenticated

    asyncio.run(play())


def test_a_secret_is_base64() -> None:
    assert len(base64.b64decode(token_password(KEY, "a"), validate=True)) == 64
