"""Reads key stores in Java's old format (JKS), as `sun.security.provider.JavaKeyStore` writes it.

A file consists of `FE ED FE ED`, a version, the number of entries, the entries, and a SHA-1 digest of the password, a
fixed phrase and all preceding bytes. Keys are encrypted with Sun's own KeyProtector, an XOR with a stream of SHA-1
digests.
"""

from __future__ import annotations

import hashlib
import hmac
from struct import Struct
from typing import NamedTuple

MAGIC = bytes.fromhex("feedfeed")
VERSIONS = (1, 2)
KEY, CERTIFICATE = 1, 2
PHRASE = b"Mighty Aphrodite"
DIGEST_BYTES = 20
ENTRIES_MAX = 10_000
SEQUENCE, OCTET_STRING = 0x30, 0x04
_INT, _SHORT = Struct(">I"), Struct(">H")


class Damaged(Exception):
    """The file is not a complete JKS file, or the password is wrong."""


class JksKey(NamedTuple):
    """An encrypted key, and its certificates in DER."""

    protected: bytes
    chain: tuple[bytes, ...]


class JksStore(NamedTuple):
    """The keys in the order of the file, and the trusted certificates in DER."""

    keys: tuple[JksKey, ...]
    trusted: tuple[bytes, ...]


def read_jks(data: bytes, password: str | None) -> JksStore:
    """Read the entries of a file. Without a password, the digest is not checked, as for a trust store in Java. Raises
    Damaged."""
    reader = _Reader(data)
    if reader.take(len(MAGIC)) != MAGIC:
        raise Damaged
    version, count = reader.number(), reader.number()
    if version not in VERSIONS or count > ENTRIES_MAX:
        raise Damaged
    keys, trusted = [], []
    for _ in range(count):
        kind = reader.number()
        reader.text()  # the alias
        reader.take(8)  # when it was added
        if kind == KEY:
            protected = reader.sized()
            keys.append(JksKey(protected, tuple(reader.certificate(version) for _ in range(reader.count()))))
        elif kind == CERTIFICATE:
            trusted.append(reader.certificate(version))
        else:
            raise Damaged
    end = reader.position
    if len(data) != end + DIGEST_BYTES:
        raise Damaged
    if password is not None:
        whole = hashlib.sha1(_wide(password) + PHRASE + data[:end], usedforsecurity=False)
        if not hmac.compare_digest(whole.digest(), data[end:]):
            raise Damaged
    return JksStore(tuple(keys), tuple(trusted))


def unprotected(key: JksKey, password: str) -> bytes:
    """Decrypt a key. Returns it as PKCS8 in DER. Raises Damaged."""
    sealed = _octets(key.protected)
    if len(sealed) < 2 * DIGEST_BYTES:
        raise Damaged
    secret, mask = _wide(password), sealed[:DIGEST_BYTES]
    body, check = sealed[DIGEST_BYTES:-DIGEST_BYTES], sealed[-DIGEST_BYTES:]
    found = bytearray()
    for begin in range(0, len(body), DIGEST_BYTES):
        mask = hashlib.sha1(secret + mask, usedforsecurity=False).digest()
        found += bytes(one ^ other for one, other in zip(body[begin : begin + DIGEST_BYTES], mask, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + found, usedforsecurity=False).digest(), check):
        raise Damaged
    return bytes(found)


def _wide(password: str) -> bytes:
    return password.encode("utf-16-be", "surrogatepass")


def _octets(info: bytes) -> bytes:
    """The encrypted data of an EncryptedPrivateKeyInfo: a sequence of an algorithm and an octet string (RFC 5208)."""
    outer = _Reader(_Reader(info).der(SEQUENCE))
    outer.der(SEQUENCE)
    return outer.der(OCTET_STRING)


class _Reader:
    """Reads a file from its beginning. Each method raises Damaged if the file ends too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        found = self._data[self.position : self.position + size]
        if len(found) < size:
            raise Damaged
        self.position += size
        return found

    def number(self) -> int:
        return int(_INT.unpack(self.take(4))[0])

    def count(self) -> int:
        found = self.number()
        if found > ENTRIES_MAX:
            raise Damaged
        return found

    def sized(self) -> bytes:
        return self.take(self.number())

    def text(self) -> bytes:
        return self.take(int(_SHORT.unpack(self.take(2))[0]))

    def certificate(self, version: int) -> bytes:
        if version > 1:
            self.text()  # its type, X.509
        return self.sized()

    def der(self, tag: int) -> bytes:
        """Read the content of the next element, which must have this tag."""
        found, size = self.take(2)
        if found != tag:
            raise Damaged
        if size & 0x80:
            size = int.from_bytes(self.take(size & 0x7F))
        return self.take(size)
