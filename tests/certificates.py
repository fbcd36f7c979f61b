"""A private certificate authority and the certificates that it signs, for tests of TLS."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

LOOPBACK = ipaddress.ip_address("127.0.0.1")
LOCAL = ("localhost", str(LOOPBACK))


class Signed(NamedTuple):
    """A key with its certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def chain_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def key_pem(self, password: str | None = None) -> str:
        how: KeySerializationEncryption = NoEncryption()
        if password is not None:
            how = BestAvailableEncryption(password.encode())
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how).decode()

    def pem(self, path: Path, password: str | None = None) -> Path:
        """Key and certificate in one file, in the form that Kafka reads."""
        path.write_text(self.key_pem(password) + self.chain_pem)
        path.chmod(0o600)
        return path

    def pkcs12(self, path: Path, password: str) -> Path:
        """The same as PKCS12."""
        how = BestAvailableEncryption(password.encode())
        path.write_bytes(pkcs12.serialize_key_and_certificates(b"me", self.key, self.certificate, None, how))
        path.chmod(0o600)
        return path


def name_of(common_name: str) -> x509.Name:
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Tests"), x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    )


def sign(
    common_name: str,
    by: Signed | None = None,
    *,
    days: int = 10,
    name: x509.Name | None = None,
    hosts: Sequence[str] = LOCAL,
) -> Signed:
    """A certificate for these hosts that expires after `days`; without `by`, the certificate of an authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = name or name_of(common_name)
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.certificate.subject if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=20))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if by is None:
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    else:
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(by.key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        names = [x509.IPAddress(LOOPBACK) if each == str(LOOPBACK) else x509.DNSName(each) for each in hosts]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Signed(key, builder.sign((by or Signed(key, None)).key, hashes.SHA256()))  # type: ignore[arg-type]
