"""Creates a private authority, and certificates for localhost, 127.0.0.1, ::1 and the given hosts that it signs."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

DAYS = 365
LAPTOP = ("localhost", "127.0.0.1", "::1")
HOUR_MS = 3_600_000
BEGIN = b"-----BEGIN CERTIFICATE-----"


class Certified(NamedTuple):
    """A private key and its owner's certificate. Never shown."""

    key: EllipticCurvePrivateKey
    certificate: x509.Certificate

    def __repr__(self) -> str:
        return f"Certified({self.certificate.subject.rfc4514_string()})"


def laptop_files(now_ms: int, hosts: Sequence[str] = ()) -> Mapping[str, bytes]:
    """The files of a new authority, a broker and a client, by file name. They are valid for a year, from an hour ago.

    The broker's certificate is also for `hosts`, which are DNS names or IP addresses. `ca.pem` is the authority's
    certificate; `server.pem` and `client.pem` have a key (PKCS8) and its certificate. The authority's key is
    discarded, so that no further certificates can be signed with it.
    """
    authority = _certified("kpybroker development", None, now_ms)
    found = {"ca.pem": _chain(authority)}
    for file, name in (("server.pem", "localhost"), ("client.pem", "developer")):
        signed = _certified(name, authority, now_ms, hosts if file == "server.pem" else ())
        found[file] = _key(signed) + _chain(signed)
    return found


def lasts_until_ms(pem: bytes) -> int:
    """The time at which the first certificate in a file expires, in milliseconds since the epoch. Raises ValueError."""
    from cryptography import x509

    return int(x509.load_pem_x509_certificate(pem[pem.find(BEGIN) :]).not_valid_after_utc.timestamp() * 1000)


def _certified(name: str, by: Certified | None, now_ms: int, hosts: Sequence[str] = ()) -> Certified:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    begins = datetime.fromtimestamp((now_ms - HOUR_MS) / 1000, UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.certificate.subject if by else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if by is None:
        return Certified(key, builder.add_extension(_signs_only(), critical=True).sign(key, hashes.SHA256()))
    names = [_general_name(host) for host in dict.fromkeys((*LAPTOP, *hosts))]
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False).add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(by.key.public_key()), critical=False
    )
    return Certified(key, builder.sign(by.key, hashes.SHA256()))


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _signs_only() -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )


def _chain(certified: Certified) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certified.certificate.public_bytes(Encoding.PEM)


def _key(certified: Certified) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return certified.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
