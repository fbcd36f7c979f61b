"""Tests that any store file is used, or refused with a reason, in a time that depends only on its size."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import PrivateFormat, pkcs12

from kpybroker.errors import ConfigError
from kpybroker.security.tls import stores
from kpybroker.security.tls.iterations import der_iterations
from kpybroker.security.tls.settings import TlsSettings, client_tls_settings
from kpybroker.security.tls.stores import read_identity, read_trust
from tests.certificates import sign

ME = sign("me")
JKS = (Path(__file__).parent / "stores" / "key.jks").read_bytes()


def packed(rounds: int, algorithm: pkcs12.PBES = pkcs12.PBES.PBESv2SHA256AndAES256CBC) -> bytes:
    how = (
        PrivateFormat.PKCS12.encryption_builder()
        .kdf_rounds(rounds)
        .key_cert_algorithm(algorithm)
        .hmac_hash(hashes.SHA256())
        .build(b"hush")
    )
    return pkcs12.serialize_key_and_certificates(b"me", ME.key, ME.certificate, None, how)


def settings(kind: str, password: str = "hush", key_password: str | None = None) -> TlsSettings:
    found = {} if key_password is None else {"ssl.key.password": key_password}
    for store in ("keystore", "truststore"):
        found |= {f"ssl.{store}.type": kind, f"ssl.{store}.location": "here"}
        if kind != "PEM":
            found[f"ssl.{store}.password"] = password
    return client_tls_settings(found)


@pytest.mark.parametrize("kind", ["PKCS12", "JKS", "PEM", "locked PEM"])
def test_a_damaged_store_is_used_or_refused_with_a_reason(kind: str) -> None:
    data, password = {
        "PKCS12": (packed(10), "hush"),
        "JKS": (JKS, "storepass"),
        "PEM": ((ME.key_pem() + ME.chain_pem).encode(), ""),
        "locked PEM": ((ME.key_pem("hush") + ME.chain_pem).encode(), ""),
    }[kind]
    found = settings(kind.split()[-1], password, {"JKS": "keypass1", "locked PEM": "hush"}.get(kind))
    assert read_identity(found, lambda _: data).pem
    chance = random.Random(kind)
    damaged = [data[:size] for size in range(0, len(data), 29)]
    for _ in range(300):
        other = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            other[chance.randrange(len(other))] = chance.randrange(256)
        damaged.append(bytes(other))
    refusals = [reason for each in damaged for reason in reasons(found, each)]
    assert len(refusals) > 100
    assert all(reason.startswith("ssl.") and "hush" not in reason for reason in refusals)


def reasons(found: TlsSettings, data: bytes) -> list[str]:
    """The reasons for which a node refuses these settings with this store, as the key store and as the trust store."""
    refused = []
    try:
        read_identity(found, lambda _: data)
    except ConfigError as error:
        refused.append(str(error))
    try:
        read_trust(found, lambda _: data)
    except ConfigError as error:
        refused.append(str(error))
    return refused


KEY, CHAIN = "ssl.keystore.key", "ssl.keystore.certificate.chain"
INLINE = {"ssl.keystore.type": "PEM", KEY: ME.key_pem(), CHAIN: ME.chain_pem}
IN_A_FILE = {"ssl.keystore.type": "PEM", "ssl.keystore.location": "me.pem"}
PACKED = {"ssl.keystore.location": "me.p12", "ssl.keystore.password": "hush"}
TRUSTED = "ssl.truststore.certificates"
FILES = {
    "me.pem": (ME.key_pem() + ME.chain_pem).encode(),
    "locked.pem": (ME.key_pem("hush") + ME.chain_pem).encode(),
    "two.pem": (ME.key_pem() + sign("you").key_pem() + ME.chain_pem).encode(),
    "me.p12": packed(10),
    "ca.pem": ME.chain_pem.encode(),
}


def read_both(found: dict[str, str]) -> None:
    def read(path: str) -> bytes:
        if path not in FILES:
            raise FileNotFoundError(2, "No such file or directory")
        return FILES[path]

    parsed = client_tls_settings(found)
    if parsed.has_keystore:
        read_identity(parsed, read)
    read_trust(parsed, read)


@pytest.mark.parametrize("used", [INLINE, IN_A_FILE, PACKED, {}], ids=["inline", "file", "PKCS12", "none"])
def test_stores_whose_settings_agree_are_used(used: dict[str, str]) -> None:
    read_both(used)
    read_both({**used, "ssl.truststore.type": "PEM", TRUSTED: ME.chain_pem})
    read_both({**used, "ssl.truststore.type": "PEM", "ssl.truststore.location": "ca.pem"})


@pytest.mark.parametrize(
    ("used", "added", "refusal"),
    [
        (INLINE, {"ssl.keystore.type": "JKS"}, "needs ssl.keystore.type=PEM, but it is JKS"),
        (INLINE, {"ssl.keystore.type": "pem"}, "needs ssl.keystore.type=PEM, but it is pem"),
        (INLINE, {"ssl.keystore.location": "me.pem"}, "ssl.keystore.location=me.pem are both set"),
        (INLINE, {"ssl.keystore.location": ""}, "ssl.keystore.location= are both set"),
        (INLINE, {"ssl.keystore.password": "hush"}, "a store of type PEM has none; only ssl.key.password"),
        (INLINE, {"ssl.key.password": "hush"}, "the key is not encrypted, but ssl.key.password is set"),
        (INLINE, {KEY: ME.key_pem("hush")}, "the key is encrypted; set ssl.key.password"),
        ({"ssl.keystore.type": "PEM"}, {KEY: ME.key_pem()}, "belong together"),
        ({"ssl.keystore.type": "PEM"}, {CHAIN: ME.chain_pem}, "belong together"),
        (IN_A_FILE, {CHAIN: ME.chain_pem}, "ssl.keystore.location=me.pem are both set"),
        (IN_A_FILE, {"ssl.keystore.type": "pem"}, "its type pem is not known; use PEM"),
        (IN_A_FILE, {"ssl.keystore.password": ""}, "a store of type PEM has none"),
        (IN_A_FILE, {"ssl.key.password": ""}, "the key is not encrypted, but ssl.key.password is set"),
        (IN_A_FILE, {"ssl.keystore.location": "locked.pem"}, "the key is encrypted; set ssl.key.password"),
        (IN_A_FILE, {"ssl.keystore.location": "two.pem"}, "more than one private key"),
        (IN_A_FILE, {"ssl.keystore.location": ""}, "ssl.keystore.location=: No such file"),
        (PACKED, {"ssl.key.password": "other"}, "the password of a key in PKCS12 is that of the store"),
        ({}, {"ssl.keystore.password": "hush"}, "ssl.keystore.password is set, but ssl.keystore.location is not"),
        ({}, {TRUSTED: ME.chain_pem}, "needs ssl.truststore.type=PEM, but it is JKS"),
        ({}, {"ssl.truststore.password": "hush"}, "ssl.truststore.password is set, but ssl.truststore.location is not"),
        (
            {"ssl.truststore.type": "PEM", "ssl.truststore.location": "ca.pem"},
            {TRUSTED: ME.chain_pem},
            "ssl.truststore.location=ca.pem are both set",
        ),
        (
            {"ssl.truststore.type": "PEM", "ssl.truststore.location": "ca.pem"},
            {"ssl.truststore.password": "hush"},
            "a store of type PEM has none; remove it",
        ),
        ({"ssl.truststore.type": "PEM"}, {TRUSTED: ""}, "no complete certificates"),
    ],
)
def test_settings_that_apache_kafka_refuses_together_are_refused(
    used: dict[str, str], added: dict[str, str], refusal: str
) -> None:
    """Each row is refused by Apache Kafka 4.3.1, too (DefaultSslEngineFactory)."""
    with pytest.raises(ConfigError) as refused:
        read_both({**used, **added})
    assert refusal in str(refused.value)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("label", ["PRIVATE KEY", "CERTIFICATE"])
def test_a_megabyte_of_beginnings_is_read_once(label: str) -> None:
    """In an earlier version, the search for the end of each block took minutes, during which the broker served no
    client."""
    data = (f"-----BEGIN {label}-----" * 40_000).encode()
    with pytest.raises(ConfigError, match="no complete"):
        read_identity(settings("PEM"), lambda _: data)
    with pytest.raises(ConfigError, match="no complete"):
        read_trust(settings("PEM"), lambda _: data)


@pytest.mark.parametrize("algorithm", [pkcs12.PBES.PBESv2SHA256AndAES256CBC, pkcs12.PBES.PBESv1SHA1And3KeyTripleDESCBC])
def test_a_store_with_more_iterations_than_the_limit_is_refused_before_they_are_made(
    algorithm: pkcs12.PBES, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "ITERATIONS_MAX", 5000)
    read_identity(settings("PKCS12"), lambda _: packed(5000, algorithm))
    store = packed(5001, algorithm)
    for read in (read_identity, read_trust):
        with pytest.raises(ConfigError, match="encrypted with 5001 iterations; at most 5000 are allowed"):
            read(settings("PKCS12"), lambda _: store)


def test_an_encrypted_key_in_pem_has_the_same_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    data = (ME.key_pem("hush") + ME.chain_pem).encode()
    read_identity(settings("PEM", key_password="hush"), lambda _: data)
    monkeypatch.setattr(stores, "ITERATIONS_MAX", 2047)
    with pytest.raises(ConfigError, match="encrypted with 2048 iterations"):
        read_identity(settings("PEM", key_password="hush"), lambda _: data)


def test_iterations_are_found_in_an_element_of_indefinite_length() -> None:
    number = (123456).to_bytes(4, "big")
    assert list(der_iterations(b"\x30\x80\x24\x80\x04\x02ab\x00\x00\x02\x04" + number + b"\x00\x00")) in ([], [123456])
    assert list(der_iterations(b"\x30\x80\x04\x02ab\x02\x04" + number + b"\x00\x00")) == [123456]
