"""SCRAM credentials, which are stored instead of passwords (RFC 5802, KIP-84, KIP-554)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
"""Kafka's limits, for both mechanisms."""


class ScramMechanism(IntEnum):
    """The SCRAM mechanisms, with Kafka's codes (KIP-554)."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


DIGESTS: Mapping[int, str] = MappingProxyType(
    {ScramMechanism.SCRAM_SHA_256: "sha256", ScramMechanism.SCRAM_SHA_512: "sha512"}
)


class ScramCredential(NamedTuple):
    """The stored values with which a login is checked. The keys are secret and never shown."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


SALT_BITS = 130
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def salt_of(number: int) -> bytes:
    """A salt of the same form as in Kafka's tools: a number of 130 bits in base 36."""
    text = ""
    while number:
        number, digit = divmod(number, len(DIGITS))
        text = DIGITS[digit] + text
    return text.encode()


def made_up_salt(secret: bytes, mechanism: ScramMechanism, name: str) -> bytes:
    """A salt for a name without a stored salt. It is always the same for the same secret."""
    made = hmac.digest(secret, f"{DIGESTS[mechanism]} {name}".encode(), "sha512")
    return salt_of(int.from_bytes(made, "big") >> len(made) * 8 - SALT_BITS)


def credential_of(mechanism: ScramMechanism, salt: bytes, salted_password: bytes, iterations: int) -> ScramCredential:
    """The credential for a password that a client has salted with this number of iterations."""
    digest = DIGESTS[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", digest)
    server_key = hmac.digest(salted_password, b"Server Key", digest)
    return ScramCredential(salt, hashlib.new(digest, client_key).digest(), server_key, iterations)
