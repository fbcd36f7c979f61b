"""Tests with key stores that keytool has written: `stores/key.jks` and `stores/trust.jks`."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_der_private_key
from cryptography.x509 import load_der_x509_certificate
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.security.tls.jks import DIGEST_BYTES, Damaged, JksKey, read_jks, unprotected

STORES = Path(__file__).parent / "stores"
KEYS, TRUST = (STORES / "key.jks").read_bytes(), (STORES / "trust.jks").read_bytes()


def test_a_key_and_its_certificate_belong_together() -> None:
    store = read_jks(KEYS, "storepass")
    (key,) = store.keys
    own = load_der_private_key(unprotected(key, "keypass1"), None)
    certificate = load_der_x509_certificate(key.chain[0])
    assert own.public_key() == certificate.public_key()
    assert read_jks(TRUST, "trustpass").trusted == key.chain
    assert store.trusted == ()


@pytest.mark.parametrize("password", ["", "keypass1", "storepas", "Storepass"])
def test_a_wrong_password_is_noticed(password: str) -> None:
    with pytest.raises(Damaged):
        read_jks(KEYS, password)


def test_a_wrong_password_of_the_key_is_noticed() -> None:
    (key,) = read_jks(KEYS, "storepass").keys
    with pytest.raises(Damaged):
        unprotected(key, "storepass")


@given(st.data())
def test_damage_is_detected(data: st.DataObject) -> None:
    """With the password, damage of any byte is detected; without it, only damage of the structure."""
    at = data.draw(st.integers(0, len(KEYS) - 1))
    flipped = KEYS[:at] + bytes([KEYS[at] ^ data.draw(st.integers(1, 255))]) + KEYS[at + 1 :]
    for broken in (flipped, KEYS[:at], KEYS + b"x"):
        with pytest.raises(Damaged):
            read_jks(broken, "storepass")
    for cut in (KEYS[:at], KEYS[:-DIGEST_BYTES]):
        with pytest.raises(Damaged):
            read_jks(cut, None)


@given(st.binary(max_size=200), st.text(max_size=5))
def test_other_entries_are_not_read_as_keys(protected: bytes, password: str) -> None:
    with pytest.raises(Damaged):
        unprotected(JksKey(protected, ()), password)
