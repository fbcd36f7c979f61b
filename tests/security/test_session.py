"""Tests the invariants of a login: whatever a client sends, in any order, it is not logged in without the right
proof."""

from __future__ import annotations

import base64
import contextlib
import hmac as real_hmac
import re
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode, MalformedFrame
from kpybroker.security.principal import ANONYMOUS, Principal
from kpybroker.security.sasl import plain, scram
from kpybroker.security.sasl.scram import MECHANISMS, ScramClient
from kpybroker.security.sasl.session import LoginSession, Stage
from kpybroker.wire.rpc import api_versions, metadata, sasl_handshake
from tests.security.logins import PASSWORDS, Clock, answered, frame, handshake, log_in, response, session, token

ALL = ("PLAIN", *MECHANISMS)
Forge = Callable[[bytes], bytes]
"""Converts the right bytes to the bytes that an attacker sends."""
FORGERIES: dict[str, Forge] = {
    "none": lambda _: b"",
    "first byte": lambda right: right[:1],
    "half": lambda right: right[: len(right) // 2],
    "all but the last": lambda right: right[:-1],
    "one more": lambda right: right + b"x",
    "twice": lambda right: right * 2,
    "another last": lambda right: right[:-1] + bytes([right[-1] ^ 1]),
    "another first": lambda right: bytes([right[0] ^ 1]) + right[1:],
    "zeros": lambda right: bytes(len(right)),
    "upper case": lambda right: right.upper() if right != right.upper() else right.lower(),
}
VERSIONS = frame("ApiVersions", api_versions.Request(client_software_name="x", client_software_version="1"), 3)


class Attacker:
    """Sends frames to a session. The attacker knows everything, but instead of the right secret it may send only the
    result of `forge`."""

    def __init__(self) -> None:
        self.session = session()
        self.first: bytes | None = None
        self.client: ScramClient | None = None

    def send(self, step: tuple[str, str, str, bytes]) -> None:
        kind, mechanism, forgery, data = step
        self.session.take(memoryview(self._frame(kind, mechanism, FORGERIES[forgery], data)))

    def _frame(self, kind: str, mechanism: str, forge: Forge, data: bytes) -> bytes | memoryview:
        match kind:
            case "versions":
                return VERSIONS
            case "handshake":
                return handshake(mechanism, len(data) % 2)
            case "metadata":
                return frame("Metadata", metadata.Request(), 1)
            case "bytes":
                return data
            case "plain":
                return self._wrapped(b"\0ann\0" + forge(PASSWORDS["ann"].encode()))
            case "first":
                name = mechanism if mechanism in MECHANISMS else "SCRAM-SHA-256"
                self.client = ScramClient(MECHANISMS[name], "ann", PASSWORDS["ann"], "client")
                return self._wrapped(self.client.first())
            case "final":
                return self._wrapped(self._final(forge))
            case _:
                return self._wrapped(data)

    def _wrapped(self, data: bytes) -> bytes | memoryview:
        return data if self.session.takes_bare_tokens else token(data)

    def _final(self, forge: Forge) -> bytes:
        exchange = getattr(self.session, "_exchange", None)
        begun = getattr(exchange, "_begun", "")
        if self.client is None or not begun:
            return b"c=biws,r=client,p=" + base64.b64encode(forge(b"x" * 32))
        server_first = begun[begun.index(",r=", begun.index(",r=") + 1) + 1 :]
        with contextlib.suppress(scram.LoginRefused):
            right = self.client.final(server_first.encode())
            begin, _, proof = right.partition(b",p=")
            return begin + b",p=" + base64.b64encode(forge(base64.b64decode(proof)))
        return b""


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ("versions", "handshake", "handshake", "metadata", "bytes", "plain", "first", "final", "token")
        ),
        st.sampled_from((*ALL, "GSSAPI", "")),
        st.sampled_from(sorted(FORGERIES)),
        st.binary(max_size=40),
    ),
    max_size=8,
)


def gets_in(steps: list[tuple[str, str, str, bytes]]) -> bool:
    """Whether the attacker is logged in after these frames. The connection ends at the first frame that is refused."""
    attacker = Attacker()
    for step in steps:
        try:
            attacker.send(step)
        except MalformedFrame:
            break
        if attacker.session.stage is Stage.FAILED:
            break
    return attacker.session.stage is Stage.COMPLETE or attacker.session.principal != ANONYMOUS


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(STEPS)
def test_no_client_is_logged_in_without_the_right_proof(steps: list[tuple[str, str, str, bytes]]) -> None:
    assert not gets_in(steps)


@pytest.mark.parametrize("forgery", sorted(FORGERIES))
@pytest.mark.parametrize("mechanism", ALL)
@pytest.mark.parametrize("is_bare", [False, True])
def test_no_forgery_in_its_place_logs_in(forgery: str, mechanism: str, is_bare: bool) -> None:
    last = [("plain", mechanism, forgery, b"")]
    if mechanism in MECHANISMS:
        last = [("first", mechanism, forgery, b""), ("final", mechanism, forgery, b"")]
    assert not gets_in([("handshake", mechanism, "none", b"" if is_bare else b"x"), *last])


def as_prefix(given_: str | bytes, other: str | bytes) -> bool:
    """A comparison that considers only the shorter length."""
    size = min(len(given_), len(other))
    return given_[:size] == other[:size]


def as_length(given_: str | bytes, other: str | bytes) -> bool:
    return len(given_) == len(other)


@pytest.mark.parametrize(("module", "compare"), [(plain, as_prefix), (plain, as_length), (scram, as_length)])
def test_a_broken_comparison_is_detected(
    monkeypatch: pytest.MonkeyPatch, module: object, compare: Callable[..., bool]
) -> None:
    """The invariants above detect these mutants."""
    monkeypatch.setattr(module, "hmac", SimpleNamespace(compare_digest=compare, digest=real_hmac.digest))
    is_scram = module is scram
    mechanism, kinds = ("SCRAM-SHA-256", ("first", "final")) if is_scram else ("PLAIN", ("plain",))
    begin = ("handshake", mechanism, "none", b"x")
    assert any(gets_in([begin, *((kind, mechanism, forgery, b"") for kind in kinds)]) for forgery in FORGERIES)


@pytest.mark.parametrize("mechanism", ALL)
@pytest.mark.parametrize("user", sorted(PASSWORDS))
@pytest.mark.parametrize("begins_with_versions", [False, True])
def test_the_right_password_logs_in(mechanism: str, user: str, begins_with_versions: bool) -> None:
    login = session()
    if begins_with_versions:
        assert login.take(VERSIONS).passes
    told = log_in(login, mechanism, user, PASSWORDS[user])
    assert (told.error_code, told.session_lifetime_ms) == (0, 0)
    assert login.is_settled
    assert login.principal == Principal("User", user)


def test_bare_tokens_log_in() -> None:
    login = session()
    assert not login.takes_bare_tokens
    login.take(handshake("PLAIN", 0))
    assert login.takes_bare_tokens
    assert login.take(memoryview(b"\0ann\0" + PASSWORDS["ann"].encode())).answer == [bytes(4)]
    assert login.principal.name == "ann"


def test_a_refused_bare_token_has_no_answer() -> None:
    login = session()
    login.take(handshake("PLAIN", 0))
    verdict = login.take(memoryview(b"\0ann\0wrong"))
    assert (verdict.answer, verdict.failure is None) == ([], False)


@pytest.mark.parametrize("mechanism", ALL)
@pytest.mark.parametrize("user", ["ann", "nobody"])
def test_a_wrong_password_gets_the_error_text_of_its_mechanism(mechanism: str, user: str) -> None:
    login = session()
    told = log_in(login, mechanism, user, "wrong")
    said = "Authentication failed during authentication due to invalid credentials with SASL mechanism " + mechanism
    if mechanism == "PLAIN":
        said = "Authentication failed: Invalid username or password"
    assert (told.error_code, told.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, said)
    assert login.stage is Stage.FAILED
    with pytest.raises(MalformedFrame):
        login.take(handshake(mechanism))


@pytest.mark.parametrize("mechanism", sorted(MECHANISMS))
def test_an_unknown_user_gets_the_same_salt_each_time(mechanism: str) -> None:
    salts = []
    for name in ("nobody", "nobody", "somebody"):
        login = session()
        login.take(handshake(mechanism))
        told = answered(login, ScramClient(MECHANISMS[mechanism], name, "x", "client").first())
        salts.append(told.auth_bytes.split(b",")[1:])
    assert salts[0] == salts[1] != salts[2]
    assert salts[0][1] == b"i=4096"
    assert re.fullmatch(rb"[0-9a-z]{20,26}", base64.b64decode(salts[0][0].removeprefix(b"s="))), "as Kafka's tools salt"


def test_requests_that_may_not_come_first() -> None:
    for first in (frame("Metadata", metadata.Request(), 1), token(b""), memoryview(b"x" * 9), memoryview(b"")):
        with pytest.raises(MalformedFrame):
            session().take(first)
    login = session()
    assert login.take(VERSIONS).passes
    with pytest.raises(MalformedFrame, match="second ApiVersions"):
        login.take(VERSIONS)


def test_refused_api_versions_leave_the_state() -> None:
    login = session()
    nameless = frame("ApiVersions", api_versions.Request(client_software_name="-", client_software_version=""), 3)
    unknown = memoryview(bytes.fromhex("00127fff00000001ffff00"))
    for again in (nameless, unknown) * 3:
        assert login.take(again).passes
        assert login.stage is Stage.FIRST


@pytest.mark.parametrize("name", ["SaslHandshake", "Metadata", "ApiVersions"])
def test_another_request_instead_of_a_token_gets_a_response_of_its_own_api(name: str) -> None:
    login = session()
    login.take(handshake("PLAIN"))
    requests = {"SaslHandshake": sasl_handshake.Request(), "Metadata": metadata.Request(topics=[])}
    verdict = login.take(frame(name, requests.get(name, api_versions.Request()), 1))
    assert verdict.failure == f"Unexpected Kafka request of type {name} during SASL authentication."
    told = response(name, 1, verdict.answer)
    if name != "Metadata":
        assert told.error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_an_unknown_mechanism_gets_the_list_of_offered_ones() -> None:
    verdict = session().take(handshake("GSSAPI"))
    told = response("SaslHandshake", 1, verdict.answer)
    assert (told.error_code, told.mechanisms) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, list(ALL))
    assert "GSSAPI" in (verdict.failure or "")


LIFETIME_MS = 5000


def logged_in(clock: Clock, mechanism: str = "PLAIN") -> LoginSession:
    login = session(LIFETIME_MS, clock)
    assert log_in(login, mechanism, "ann", PASSWORDS["ann"]).session_lifetime_ms == LIFETIME_MS
    assert login.stage is Stage.COMPLETE
    assert not login.is_settled
    return login


def test_a_session_ends_and_may_be_renewed() -> None:
    clock = Clock()
    login = logged_in(clock)
    for _ in range(3):
        clock.now_ms += LIFETIME_MS
        assert login.take(frame("Metadata", metadata.Request(), 1)).passes, "at its last moment"
        clock.now_ms += 1
        assert log_in(login, "PLAIN", "ann", PASSWORDS["ann"]).session_lifetime_ms == LIFETIME_MS, "late, and renewed"
    clock.now_ms += LIFETIME_MS + 1
    with pytest.raises(MalformedFrame, match="session of User:ann has ended"):
        login.take(frame("Metadata", metadata.Request(), 1))


def test_a_session_may_be_renewed_once_a_second() -> None:
    clock = Clock()
    login = logged_in(clock)
    assert log_in(login, "PLAIN", "ann", PASSWORDS["ann"]).error_code == 0
    assert login.take(handshake("PLAIN")).passes, "answered by its handler"
    clock.now_ms += 1000
    assert log_in(login, "PLAIN", "ann", PASSWORDS["ann"]).error_code == 0


def test_a_renewed_session_has_the_same_user_and_the_same_mechanism() -> None:
    login = logged_in(Clock())
    told = log_in(login, "PLAIN", "bob", PASSWORDS["bob"])
    said = "Cannot change principals during re-authentication from User.ann: User.bob"
    assert (told.error_code, told.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, said)
    assert login.principal.name == "ann"
    login = logged_in(Clock())
    assert response("SaslHandshake", 1, login.take(handshake("SCRAM-SHA-256")).answer).error_code == 0
    with pytest.raises(MalformedFrame, match="after a login with PLAIN"):
        login.take(token(b"n,,n=ann,r=x"))


def test_a_failed_renewal_gets_its_own_error_text() -> None:
    login = logged_in(Clock(), "SCRAM-SHA-512")
    told = log_in(login, "SCRAM-SHA-512", "ann", "wrong")
    assert (told.error_message or "").startswith("Authentication failed during re-authentication due to invalid")
