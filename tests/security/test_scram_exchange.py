"""Tests of SCRAM: both sides send the messages of RFC 7677, log in with any password, and refuse a peer that does not
know it."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.security.principal import Principal
from kpybroker.security.sasl.exchange import LoginRefused
from kpybroker.security.sasl.scram import (
    ITERATIONS_LIMIT,
    MECHANISMS,
    SALTED_MAX,
    ScramClient,
    ScramExchange,
    salted_password,
)
from kpybroker.security.scram import DIGESTS, ScramCredential, ScramMechanism, credential_of
from tests.security.test_scram import SALT

SHA_256 = ScramMechanism.SCRAM_SHA_256
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def made(mechanism: ScramMechanism, password: str, iterations: int = 4096) -> ScramCredential:
    salted = hashlib.pbkdf2_hmac(DIGESTS[mechanism], password.encode(), SALT, iterations)
    return credential_of(mechanism, SALT, salted, iterations)


def test_the_messages_of_the_rfc() -> None:
    client = ScramClient(SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    server = ScramExchange(SHA_256, {"user": made(SHA_256, "pencil")}.get, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b"")
    assert client.first() == FIRST
    assert server.step(FIRST) == SERVER_FIRST
    assert client.final(SERVER_FIRST) == FINAL
    assert server.step(FINAL) == SERVER_FINAL
    client.check(SERVER_FINAL)
    assert server.principal == Principal("User", "user")
    with pytest.raises(LoginRefused):
        server.step(FINAL)


NAMES = st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=20)
PASSWORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(MECHANISMS)), NAMES, PASSWORDS, PASSWORDS)
def test_any_name_and_password_work_and_no_others(mechanism: str, name: str, password: str, other: str) -> None:
    """Passwords are used as UTF-8 without SASLprep, which would change some of them."""
    number = MECHANISMS[mechanism]
    for given_, is_right in ((password, True), (other, other == password)):
        client = ScramClient(number, name, given_, "client")
        server = ScramExchange(number, {name: made(number, password)}.get, "server", b"secret")
        final = client.final(server.step(client.first()))
        if is_right:
            client.check(server.step(final))
            assert server.principal == Principal("User", name)
        else:
            with pytest.raises(LoginRefused):
                server.step(final)
            assert server.principal is None


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.binary(max_size=60) | st.sampled_from([FIRST, FINAL, SERVER_FINAL, b"n,,n=user,r=a,m=b"]), max_size=3)
)
def test_any_bytes_are_answered_or_refused(tokens: list[bytes]) -> None:
    server = ScramExchange(SHA_256, {"user": made(SHA_256, "pencil")}.get, "server", b"secret")
    try:
        for token in tokens:
            server.step(token)
    except LoginRefused:
        pass
    assert server.principal is None


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff",
        b"r=other,s=c2FsdA==,i=4096",
        b"r=client,s=c2FsdA==,i=4096",
        b"r=clientserver,s=c2FsdA==,i=4095",
        b"r=clientserver,s=c2FsdA==,i=" + str(ITERATIONS_LIMIT + 1).encode(),
        b"r=clientserver,s=c2FsdA==,i=99999999999",
        b"r=clientserver,s=c2FsdA,i=4096",
    ],
)
def test_a_client_refuses_invalid_server_messages(answer: bytes) -> None:
    """With too few iterations, a malicious server could guess the password; too many would take too long."""
    with pytest.raises(LoginRefused):
        ScramClient(SHA_256, "user", "pencil", "client").final(answer)


def test_a_client_does_not_trust_a_server_that_does_not_know_the_password() -> None:
    client = ScramClient(SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    client.final(SERVER_FIRST)
    for wrong in (b"", b"v=", SERVER_FINAL[:-5], b"e=other-error", SERVER_FINAL.replace(b"6", b"7")):
        with pytest.raises(LoginRefused):
            client.check(wrong)


def test_a_credential_with_too_few_iterations_does_not_log_in() -> None:
    """Apache Kafka also refuses such a login; old records may contain such a credential."""
    server = ScramExchange(SHA_256, {"user": made(SHA_256, "pencil", 1000)}.get, "server", b"secret")
    with pytest.raises(LoginRefused, match="1000 iterations"):
        server.step(FIRST)


def test_an_extension_may_not_occur_twice() -> None:
    """Apache Kafka also refuses it, because it would be unclear which one counts."""
    for extensions in (b",x=1,x=2", b",tokenauth=true,tokenauth=true"):
        server = ScramExchange(SHA_256, {"user": made(SHA_256, "pencil")}.get, "server", b"secret")
        with pytest.raises(LoginRefused, match="occurs twice"):
            server.step(FIRST + extensions)


def test_messages_are_short() -> None:
    """The first message is kept in memory until the client sends the second, although the client is not authenticated;
    and parsing either message takes time and memory."""
    server = ScramExchange(SHA_256, {"user": made(SHA_256, "pencil")}.get, "server", b"secret")
    with pytest.raises(LoginRefused, match="more than 4096 bytes"):
        server.step(FIRST + b"x" * 4096)


def test_a_password_is_salted_once_for_all_logins_with_the_same_salt() -> None:
    salted_password.cache_clear()
    expected = hashlib.pbkdf2_hmac("sha256", b"of ann", b"salt", 4096)
    for number in range(3):
        assert salted_password("sha256", b"of ann", b"salt", 4096) == expected
        assert salted_password.cache_info().hits == number
    for number in range(SALTED_MAX + 1):
        salted_password("sha256", b"%d" % number, b"salt", 1)
    assert salted_password.cache_info().currsize == SALTED_MAX


def test_a_last_message_is_short() -> None:
    server = ScramExchange(SHA_256, {"user": made(SHA_256, "pencil")}.get, "server", b"secret")
    server.step(FIRST)
    with pytest.raises(LoginRefused, match="more than 4096 bytes"):
        server.step(b"c=biws,r=x" + b",a=b" * 1024 + b",p=AAAA")
