"""Tests the invariants of logins with tokens: only a valid token logs in, under the name in the token, whatever else a
client sends."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kpybroker.config.oauth_settings import KeysFile, SignedTokens, UnsecuredTokens
from kpybroker.errors import ErrorCode, MalformedFrame
from kpybroker.handlers import refused
from kpybroker.security.principal import ANONYMOUS, Principal
from kpybroker.security.sasl.bearer_tokens import (
    LIFETIME_MAX_MS,
    NAME_MAX,
    TOKEN_MAX,
    BearerLogin,
    TokenCheck,
    TokenRefused,
    parse_object,
)
from kpybroker.security.sasl.exchange import LoginRefused, Mechanism
from kpybroker.security.sasl.key_sets import ALGORITHMS, KeySet, parse_keys
from kpybroker.security.sasl.oauthbearer import MESSAGE_MAX, SEEN, TOKENS_MAX, OAuthBearerExchange
from kpybroker.security.sasl.session import LoginSession, Stage
from kpybroker.security.sasl.signed_tokens import SignedCheck
from kpybroker.security.sasl.unsecured_tokens import UnsecuredCheck
from kpybroker.wire.rpc import metadata
from oracle.identity_provider import IdentityProvider, encoded, first_message, unsecured
from tests.security.logins import Clock, answered, frame, handshake

NOW_S = 1_800_000_000
NOW_MS = NOW_S * 1000
SKEW_S = 30
PROVIDER = IdentityProvider("RS256", "ES256", "EdDSA", "HS256")
NOBODY = IdentityProvider("RS256", "ES256", "EdDSA", "HS256")
"""A provider that has keys with the same names, which the listener does not have."""
KEYS = parse_keys(PROVIDER.key_set().encode())
RULES = SignedTokens(KeysFile("nowhere"), ("kafka",), "me", SKEW_S, "scope", "sub")
INVALID = '{"status":"invalid_token"}'
LOGIN_TIMES = {"iat": NOW_S - 10, "exp": NOW_S + 60}


class Known:
    """Keys that never change. `asked` contains the names of missing keys that tokens referred to."""

    def __init__(self, current: KeySet) -> None:
        self.current = current
        self.asked: list[str] = []

    def preparation(self) -> None:
        return None

    def missing(self, kid: str) -> None:
        self.asked.append(kid)


def unsecured_check(**rules: object) -> UnsecuredCheck:
    return UnsecuredCheck(UnsecuredTokens()._replace(**rules), lambda: NOW_MS)


def signed_check(**rules: object) -> SignedCheck:
    return SignedCheck(RULES._replace(**rules), Known(KEYS), lambda: NOW_MS)


def claims(**changed: object) -> dict[str, object]:
    return {"sub": "ann", "aud": "kafka", "iss": "me", **LOGIN_TIMES, **changed}


def tokens(kind: str) -> tuple[TokenCheck, Callable[[object], str]]:
    """The check of a listener, and an object that creates tokens for it."""
    return (unsecured_check(), unsecured) if kind == "unsecured" else (signed_check(), PROVIDER.token)


def session(check: TokenCheck, clock: Clock | None = None, reauth_ms: int = 0) -> LoginSession:
    mechanism = Mechanism(lambda: OAuthBearerExchange(check), reauth_ms)
    return LoginSession({"OAUTHBEARER": mechanism}, refused, clock or Clock())


def answer_of(ask: Callable[[], object]) -> object:
    """The response, or the reason for the refusal."""
    try:
        return ask()
    except (LoginRefused, TokenRefused) as why:
        return why


KINDS = pytest.mark.parametrize("kind", ["unsecured", "signed"])


# ---- the exchange


@pytest.mark.slow
@KINDS
@settings(max_examples=200, deadline=None)
@given(messages=st.lists(st.binary(max_size=60) | st.just(SEEN) | st.just(b"right") | st.just(b"wrong"), max_size=6))
def test_only_a_valid_token_logs_in(kind: str, messages: list[bytes]) -> None:
    """The response to a valid token is empty. A refusal is sent twice, with the client's acknowledgement in between."""
    check, make = tokens(kind)
    right, wrong = first_message(make(claims()), "ann"), first_message(make(claims(exp=NOW_S - 60)))
    exchange, before = OAuthBearerExchange(check), b""
    for message in messages:
        sent = {b"right": right, b"wrong": wrong}.get(message, message)
        assume(sent != right or message == b"right")
        assert exchange.principal is None
        answer = answer_of(lambda sent=sent: exchange.step(sent))
        if isinstance(answer, LoginRefused):
            assert answer.told == (INVALID if (before, sent) == (wrong, SEEN) else None)
            assert message != b"right"
            break
        before = sent
        if answer == b"":
            assert message == b"right"
            assert (exchange.principal, exchange.lifetime_ms) == (Principal("User", "ann"), 60_000)
            return
        assert answer == INVALID.encode()
    assert exchange.principal is None


KEY = st.from_regex(r"[A-Za-z]{1,5}", fullmatch=True).filter(lambda key: key != "auth")
VALUE = st.from_regex(r"[\x21-\x7e \t\r\n]{1,8}", fullmatch=True)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.dictionaries(KEY, VALUE, max_size=4), st.sampled_from(["Bearer", "bearer", "BEARER"]), st.integers(1, 3))
def test_extensions_and_the_case_of_the_scheme_have_no_effect(pairs: dict[str, str], scheme: str, blanks: int) -> None:
    message = first_message(unsecured(claims()), "ann", "".join(f"{key}={value}\x01" for key, value in pairs.items()))
    exchange = OAuthBearerExchange(unsecured_check())
    assert exchange.step(message.replace(b"Bearer ", scheme.encode() + b" " * blanks)) == b""


@pytest.mark.parametrize(("at", "byte"), [(0, b"y"), (1, b";"), (2, b"a"), (3, b"\x00"), (-1, b"\x02"), (-2, b"\xff")])
def test_a_first_message_with_another_byte_is_refused(at: int, byte: bytes) -> None:
    message = bytearray(first_message(unsecured(claims())))
    message[at] = byte[0]
    with pytest.raises(LoginRefused) as error:
        OAuthBearerExchange(unsecured_check()).step(bytes(message))
    assert error.value.told is None


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.from_regex(r"(?s)n,(a=.{0,9})?,\x01((auth|[a-z]{1,3})=.{0,12}\x01){0,3}\x01", fullmatch=True))
def test_distorted_first_messages_are_answered_or_refused(message: str) -> None:
    with contextlib.suppress(LoginRefused):
        assert OAuthBearerExchange(unsecured_check()).step(message.encode("utf-8", "replace")) == INVALID.encode()


def test_an_authorization_id_has_a_limit() -> None:
    """The id is repeated in the response, so it must be short."""
    for length, said in ((NAME_MAX, "Client requested an authorization id"), (NAME_MAX + 1, None)):
        with pytest.raises(LoginRefused) as error:
            OAuthBearerExchange(unsecured_check()).step(first_message(unsecured(claims()), "x" * length))
        assert (error.value.told is None) == (said is None)
        assert (said or "") in (error.value.told or "")


def test_one_login_may_try_a_few_tokens() -> None:
    exchange = OAuthBearerExchange(unsecured_check())
    for _ in range(TOKENS_MAX):
        assert exchange.step(first_message("x")) == INVALID.encode()
    with pytest.raises(LoginRefused, match="more than 8 tokens"):
        exchange.step(first_message(unsecured(claims())))


def test_a_first_message_has_a_limit() -> None:
    exchange = OAuthBearerExchange(unsecured_check())
    with pytest.raises(LoginRefused, match=f"more than {MESSAGE_MAX} bytes"):
        exchange.step(b"n,,\x01" + b"a=b\x01" * (MESSAGE_MAX // 4) + b"\x01")


# ---- a session


@KINDS
@pytest.mark.parametrize(
    ("reauth_ms", "lives_s", "lasts_ms"), [(0, 7, 7000), (500, 7, 500), (9000, 7, 7000), (0, -7, 0), (500, -7, 0)]
)
def test_a_session_ends_with_its_token(kind: str, reauth_ms: int, lives_s: int, lasts_ms: int) -> None:
    """The session ends earlier with connections.max.reauth.ms. With a token that is valid only because of the clock
    skew, it ends at once."""
    check = unsecured_check(clock_skew_ms=SKEW_S * 1000) if kind == "unsecured" else signed_check()
    make, clock = tokens(kind)[1], Clock()
    login = session(check, clock, reauth_ms)
    login.take(handshake("OAUTHBEARER"))
    told = answered(login, first_message(make(claims(exp=NOW_S + lives_s))))
    assert (told.error_code, told.session_lifetime_ms) == (0, lasts_ms)
    assert login.stage is Stage.COMPLETE
    clock.now_ms += lasts_ms
    assert login.take(frame("Metadata", metadata.Request(), 1)).passes, "at its last moment"
    clock.now_ms += 1
    with pytest.raises(MalformedFrame, match="session of User:ann has ended"):
        login.take(frame("Metadata", metadata.Request(), 1))


@KINDS
def test_a_session_is_renewed_by_the_same_name(kind: str) -> None:
    check, make = tokens(kind)
    login = session(check)
    for name, told in (
        ("ann", ""),
        ("bob", "Cannot change principals during re-authentication from User.ann: User.bob"),
    ):
        login.take(handshake("OAUTHBEARER"))
        answer = answered(login, first_message(make(claims(sub=name))))
        assert answer.error_message == told
        assert login.principal.name == "ann"
    assert login.stage is Stage.FAILED


def test_a_refusal_has_kafkas_error_code() -> None:
    login = session(unsecured_check(required_scope=("a", "b")))
    login.take(handshake("OAUTHBEARER"))
    told = answered(login, first_message(unsecured(claims(scope=["a"]))))
    lacks = '{"status":"insufficient_scope", "scope":"[a, b]"}'
    assert (told.error_code, told.auth_bytes, told.session_lifetime_ms) == (0, lacks.encode(), 0)
    told = answered(login, SEEN)
    assert (told.error_code, told.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, lacks)
    assert (login.stage, login.principal) == (Stage.FAILED, ANONYMOUS)


# ---- tokens of any shape


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([NOW_S, NOW_S + 1, 10**40, -1])
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["ann", "kafka", "me", "none", "RS256", "ES256", "HS256", "EdDSA"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
NAMES = st.sampled_from(["sub", "aud", "iss", "exp", "iat", "nbf", "jti", "scope", "alg", "kid", "crit", "b64", "x5t"])


@pytest.mark.slow
@KINDS
@settings(max_examples=400, deadline=None)
@given(changed=st.dictionaries(NAMES, JSON, max_size=3), about=st.dictionaries(NAMES, JSON, max_size=3))
def test_any_claims_and_any_header_are_checked(kind: str, changed: dict[str, object], about: dict[str, object]) -> None:
    """A client that logs in has a name of acceptable length, and an expiry time that can be represented."""
    check = tokens(kind)[0]
    header = {"alg": "none" if kind == "unsecured" else "RS256", **about}
    body = claims(**changed)
    token = unsecured(body, header) if kind == "unsecured" else PROVIDER.token(body, "RS256", header)
    login = answer_of(lambda: check.check(token))
    if isinstance(login, TokenRefused):
        assert json.loads(login.answer)["status"] == "invalid_token"
        assert str(login).isascii()
    else:
        assert isinstance(login, BearerLogin)
        assert 0 <= login.lifetime_ms <= LIFETIME_MAX_MS
        assert 0 < len(login.name) <= NAME_MAX
        assert login.name.encode()


@pytest.mark.slow
@KINDS
@settings(max_examples=300, deadline=None)
@given(
    token=st.text(alphabet="aA1-_~+/.=", max_size=30)
    | st.lists(JSON, min_size=3, max_size=3).map(lambda parts: ".".join(encoded(json.dumps(part)) for part in parts))
)
def test_other_bytes_are_refused(kind: str, token: str) -> None:
    with pytest.raises(TokenRefused):
        tokens(kind)[0].check(token)


@cache
def signed_token(kid: str) -> str:
    """The same token for all examples: a signature with ES256 is another one each time."""
    return PROVIDER.token(claims(), kid)


@pytest.mark.parametrize("kid", ["RS256", "ES256", "EdDSA"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_changing_any_character_of_a_signed_token_makes_it_invalid(kid: str, data: st.DataObject) -> None:
    """The exception is the last character of the signature, because some of its bits are unused."""
    token = signed_token(kid)
    assert signed_check().check(token) == BearerLogin("ann", 60_000)
    at = data.draw(st.integers(0, len(token) - 2))
    other = data.draw(st.sampled_from("AQgw_-.x").filter(lambda character: character != token[at]))
    with pytest.raises(TokenRefused):
        signed_check().check(token[:at] + other + token[at + 1 :])


@pytest.mark.parametrize("kid", ["RS256", "ES256", "EdDSA", "HS256"])
def test_a_token_of_another_signer_is_refused(kid: str) -> None:
    """This includes a token that is signed with the public key as a secret, or with a secret that the set contains."""
    for signer in (NOBODY, PROVIDER) if kid == "HS256" else (NOBODY,):
        with pytest.raises(TokenRefused):
            signed_check().check(signer.token(claims(), kid))
    for algorithm in (*ALGORITHMS, "none", "HS256", "HS384"):
        with pytest.raises(TokenRefused):
            signed_check().check(NOBODY.token(claims(), kid, {"alg": algorithm, "kid": "RS256"}))


def test_claims_are_not_parsed_before_the_signature_is_verified() -> None:
    token = NOBODY.token("[" * 40_000, "RS256")
    with pytest.raises(TokenRefused, match="its signature is wrong"):
        signed_check().check(token)
    with pytest.raises(TokenRefused, match="a part is not JSON"):
        signed_check().check(PROVIDER.token("[" * 40_000, "RS256"))


@KINDS
def test_sizes_have_limits(kind: str) -> None:
    check, make = tokens(kind)
    assert check.check(make(claims(sub="x" * NAME_MAX))).name == "x" * NAME_MAX
    with pytest.raises(TokenRefused, match="more than 1024 characters"):
        check.check(make(claims(sub="x" * (NAME_MAX + 1))))
    with pytest.raises(TokenRefused, match="more than 65536 characters"):
        check.check(make(claims(x="x" * TOKEN_MAX)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"NaN",
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":1,"a":1}',
        b'{"b":{"a":1,"a":1}}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":' + b"[" * 100_000,
    ],
)
def test_invalid_json_objects(data: bytes) -> None:
    with pytest.raises(TokenRefused):
        parse_object(data)


def test_a_name_is_text_that_can_be_written() -> None:
    for name in ("\ud800", "a\udfffb"):
        with pytest.raises(TokenRefused, match="half of a surrogate pair"):
            unsecured_check().check(unsecured(json.dumps(claims(sub=name))))
    assert unsecured_check().check(unsecured(claims(sub="\U0001f600 é"))).name == "\U0001f600 é"


# ---- keys that tokens refer to


def test_a_missing_key_is_requested() -> None:
    keys = Known(KEYS)
    check = SignedCheck(RULES, keys, lambda: NOW_MS)
    for header in ({"alg": "RS256", "kid": "new"}, {"alg": "PS256"}, {"alg": "ES256", "kid": "RS256"}):
        with contextlib.suppress(TokenRefused):
            check.check(PROVIDER.token(claims(), "RS256", header))
    assert keys.asked == ["new", "RS256"]
    for header in ({"alg": "none", "kid": "a"}, {"alg": "HS256", "kid": "b"}, {"alg": "RS256", "kid": 3}):
        with pytest.raises(TokenRefused):
            check.check(PROVIDER.token(claims(), "RS256", header))
    assert len(keys.asked) == 2, "not for tokens that no key could make valid"


def test_reasons_have_no_part_of_a_token() -> None:
    """Reasons are logged."""
    secret = "hush" * 5
    for body in (
        claims(aud=secret),
        claims(iss=secret),
        claims(exp=secret),
        claims(scope=[secret, secret]),
        claims(jti=[secret]),
        claims(sub=[secret]),
    ):
        with pytest.raises(TokenRefused) as error:
            signed_check().check(PROVIDER.token(body, "RS256"))
        assert secret not in str(error.value) + error.value.answer
