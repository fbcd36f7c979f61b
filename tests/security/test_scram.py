"""Tests that a credential is derived from a password as in RFC 5802: the exchange in RFC 7677 succeeds with it."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode

from kpybroker.security.scram import DIGESTS, ScramMechanism, credential_of

SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
NONCE = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
EXCHANGE = (f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={NONCE}").encode()
"""The messages of both sides, except for the proof."""


def test_the_exchange_of_the_rfc_succeeds() -> None:
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
    credential = credential_of(ScramMechanism.SCRAM_SHA_256, SALT, salted, 4096)
    assert b64encode(hmac.digest(credential.server_key, EXCHANGE, "sha256")) == (
        b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    )
    proof = b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    signature = hmac.digest(credential.stored_key, EXCHANGE, "sha256")
    client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
    assert hashlib.sha256(client_key).digest() == credential.stored_key


def test_each_mechanism_has_keys_of_its_digest() -> None:
    for mechanism, digest in DIGESTS.items():
        credential = credential_of(ScramMechanism(mechanism), SALT, b"salted", 4096)
        size_bytes = hashlib.new(digest).digest_size
        assert {len(credential.stored_key), len(credential.server_key)} == {size_bytes}
