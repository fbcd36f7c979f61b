"""Tests of sets of public keys: which keys are used, and which key a token refers to."""

from __future__ import annotations

import contextlib
import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import ConfigError
from kpybroker.security.sasl.key_sets import ALGORITHMS, KEYS_MAX, check_library, is_signed_by, parse_keys
from oracle.identity_provider import IdentityProvider

SIGNING = ("RS256", "PS512", "ES256", "ES384", "ES512", "EdDSA")
PROVIDER = IdentityProvider(*SIGNING, "HS256")
PROVIDER.add("short", "RS256", bits=1024)
RSA = PROVIDER.row("RS256")


def kids(*rows: object) -> list[str | None]:
    return [each.kid for each in parse_keys(json.dumps({"keys": rows}).encode()).keys]


def test_public_keys_are_used_and_no_others() -> None:
    found = parse_keys(PROVIDER.key_set(PROVIDER.row("short")).encode())
    assert [each.kid for each in found.keys] == list(SIGNING)
    assert found.left_out == 2, "a secret, and a key that is too short"


@pytest.mark.parametrize(
    "changed",
    [
        {"use": "enc"},
        {"use": 3},
        {"key_ops": ["sign"]},
        {"key_ops": "verify"},
        {"key_ops": []},
        {"kty": "rsa"},
        {"kty": None},
        {"kty": ["RSA"]},
        {"kid": 3},
        {"alg": ["RS256"]},
        {"x5t": 3},
        {"n": None},
        {"n": 3},
        {"n": "!"},
        {"n": "\u00e9"},
        {"n": ""},
        {"e": ""},
        {"e": "AA"},
        {"e": "AQAB" * 8},
        {"n": "_" * 2800},
    ],
)
def test_a_key_that_cannot_be_used_is_left_out(changed: dict[str, object]) -> None:
    assert kids({**RSA, **changed}, PROVIDER.row("ES256")) == ["ES256"]


@pytest.mark.parametrize(
    "changed",
    [
        {"crv": "P-192"},
        {"crv": "secp256k1"},
        {"crv": None},
        {"crv": ["P-256"]},
        {"x": "AAAA"},
        {"y": None},
        {"crv": "P-384"},
    ],
)
def test_a_point_that_is_on_no_curve_is_left_out(changed: dict[str, object]) -> None:
    assert kids({**PROVIDER.row("ES256"), **changed}) == []
    assert kids({**PROVIDER.row("EdDSA"), "crv": "X25519"}, {**PROVIDER.row("EdDSA"), "x": "AA"}) == []


def test_optional_fields_of_a_key() -> None:
    assert kids({**RSA, "use": None}, {**RSA, "key_ops": ["verify"]}, {**RSA, "x5c": [3], "other": {}}) == ["RS256"] * 3


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[]", "a list of keys"),
        (b"{}", "a list of keys"),
        (b'{"keys": {}}', "a list of keys"),
        (b'{"keys": [[]]}', "a list of keys"),
        (json.dumps({"keys": [{}] * (KEYS_MAX + 1)}).encode(), "it has 1001 keys, at most 1000 are allowed"),
    ],
)
def test_an_invalid_set_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_keys(data)


def test_a_set_may_be_empty_or_full() -> None:
    assert parse_keys(b'{"keys": []}').keys == ()
    assert parse_keys(json.dumps({"keys": [{}] * KEYS_MAX}).encode()).left_out == KEYS_MAX


MEMBER = st.none() | st.integers() | st.text(max_size=6) | st.lists(st.text(max_size=3), max_size=2)
NAMES = st.sampled_from(["kty", "n", "e", "crv", "x", "y", "kid", "alg", "use", "key_ops", "x5t", "x5t#S256"])


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.sampled_from(SIGNING), st.dictionaries(NAMES, MEMBER, max_size=3), st.binary(max_size=80))
def test_any_key_is_used_or_left_out(kid: str, changed: dict[str, object], signature: bytes) -> None:
    for each in parse_keys(json.dumps({"keys": [{**PROVIDER.row(kid), **changed}]}).encode()).keys:
        for algorithm in ALGORITHMS:
            assert not is_signed_by(each, algorithm, b"x", signature)


@given(st.binary(max_size=60) | st.from_regex(rb'\{"keys": ?\[.{0,20}\]\}', fullmatch=True))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert parse_keys(data).keys == ()


# ---- the key that a token refers to


def test_the_key_has_the_name_and_the_type_of_the_token() -> None:
    keys = parse_keys(PROVIDER.key_set().encode())
    for header, kid in (
        ({"alg": "RS256", "kid": "RS256"}, "RS256"),
        ({"alg": "PS256", "kid": "RS256"}, "RS256"),
        ({"alg": "RS256", "kid": "ES256"}, None),
        ({"alg": "ES256", "kid": "RS256"}, None),
        ({"alg": "RS256", "kid": "rs256"}, None),
        ({"alg": "RS256"}, "RS256"),
        ({"alg": "ES384"}, "ES384"),
        ({"alg": "EdDSA"}, "EdDSA"),
    ):
        found = keys.find(header)
        assert (found and found.kid) == kid, header


def test_of_several_keys_the_one_with_the_right_algorithm_or_thumbprint_is_used() -> None:
    first, second = {**RSA, "kid": "1", "alg": "RS256", "x5t": "a"}, {**RSA, "kid": "2", "alg": "RS512", "x5t": "b"}
    keys = parse_keys(json.dumps({"keys": [first, second]}).encode())
    for header, kid in (
        ({"alg": "RS512"}, "2"),
        ({"alg": "RS384"}, None),
        ({"alg": "RS384", "x5t": "b"}, "2"),
        ({"alg": "RS256", "x5t": "c"}, None),
        ({"alg": "RS512", "kid": "1"}, "1"),
    ):
        found = keys.find(header)
        assert (found and found.kid) == kid, header


def test_a_missing_library_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    check_library()
    monkeypatch.setitem(sys.modules, "joserfc", None)
    with pytest.raises(ConfigError, match=r"need the package joserfc: pip install 'kpybroker\[oauth\]'"):
        check_library()
