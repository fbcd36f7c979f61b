"""Reads key stores and trust stores: PEM in the settings (KIP-651), PEM files, PKCS12 files and JKS files.

The first bytes of a file decide between PKCS12 and JKS. Java also opens either kind when the other type is set.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from kpybroker.errors import ConfigError
from kpybroker.security.tls import jks
from kpybroker.security.tls.iterations import der_iterations
from kpybroker.security.tls.settings import TlsSettings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates
    from cryptography.x509 import Certificate

Read = Callable[[str], bytes]
"""Reads a file. Raises OSError."""
INSTALL = "pip install 'kpybroker[tls]'"
KEY = re.compile(r"-----BEGIN ((?:[A-Z]{1,20} )?PRIVATE KEY)-----")
CERTIFICATE = "CERTIFICATE"
PEM = "PEM"
"""The type of store, in capitals as in Apache Kafka."""
SEQUENCE = b"\x30"
"""The first byte of a PKCS12 file."""
CERTIFICATES_MAX = 1000
ITERATIONS_MAX = 1_000_000
"""The most iterations of a store. They take a quarter of a second. Java allows five times as many; keytool uses
10,000."""


class Identity(NamedTuple):
    """A key and its certificates. Never shown."""

    pem: bytes
    """The unencrypted key, and the certificates."""
    expires_ms: int
    """The time at which the first certificate expires, in milliseconds since the epoch."""

    def __repr__(self) -> str:
        return f"Identity(expires_ms={self.expires_ms})"


def check_library() -> None:
    """Raise ConfigError if the library that reads stores is not installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise ConfigError(f"a listener with TLS needs the package cryptography: {INSTALL}") from None


def unreadable() -> tuple[type[Exception], ...]:
    """The exceptions that are raised for keys and certificates that cannot be read."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.x509 import InvalidVersion

    return jks.Damaged, ValueError, TypeError, UnsupportedAlgorithm, InvalidVersion


def read_identity(settings: TlsSettings, read: Read) -> Identity:
    """The key and the certificates of a listener. Raises ConfigError with the setting, the cause and the remedy."""
    key, chain = _key_and_chain(settings, read)
    if key is None or not chain:
        raise ConfigError(f"ssl.keystore: {'no key' if key is None else 'no certificate'} in it; add one")
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    try:
        is_own = key.public_key().public_bytes(*form) == chain[0].public_key().public_bytes(*form)
        own_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    except unreadable():
        raise ConfigError("ssl.keystore: the key or its certificate is damaged, or of an unknown kind") from None
    if not is_own:
        raise ConfigError("ssl.keystore: the first certificate is not that of the key; put the key's own first")
    return Identity(
        own_pem + b"".join(each.public_bytes(Encoding.PEM) for each in chain),
        int(chain[0].not_valid_after_utc.timestamp() * 1000),
    )


def read_trust(settings: TlsSettings, read: Read) -> str:
    """The trusted certificates as PEM; empty without a trust store. Raises ConfigError."""
    text = settings.truststore_certificates
    own = "ssl.truststore.certificates" if text is not None else ""
    _check_together(
        "ssl.truststore", settings.truststore_type, settings.truststore_location, settings.truststore_password, own
    )
    if text is not None:
        found = _certificates(text, own)
    elif settings.truststore_location is not None:
        found = _trusted(_read(settings.truststore_location, "ssl.truststore.location", read), settings)
    else:
        return ""
    from cryptography.hazmat.primitives.serialization import Encoding

    if not found:
        raise ConfigError("ssl.truststore: no certificate in it; add the one of the authority that signs the clients'")
    return b"".join(each.public_bytes(Encoding.PEM) for each in found).decode()


def _key_and_chain(settings: TlsSettings, read: Read) -> tuple[PrivateKeyTypes | None, list[Certificate]]:
    is_inline = settings.keystore_key is not None or settings.keystore_chain is not None
    own = "ssl.keystore.key with ssl.keystore.certificate.chain" if is_inline else ""
    _check_together("ssl.keystore", settings.keystore_type, settings.keystore_location, settings.keystore_password, own)
    if is_inline:
        if settings.keystore_key is None or settings.keystore_chain is None:
            raise ConfigError("ssl.keystore.key and ssl.keystore.certificate.chain belong together; set both")
        return (
            _key(settings.keystore_key, settings.key_password, "ssl.keystore.key"),
            _certificates(settings.keystore_chain, "ssl.keystore.certificate.chain"),
        )
    if settings.keystore_location is None:
        raise ConfigError("a listener with TLS needs a key: set ssl.keystore.type=PEM and ssl.keystore.location")
    said = f"ssl.keystore.location={settings.keystore_location}"
    data = _read(settings.keystore_location, "ssl.keystore.location", read)
    if _is_pem(data, settings.keystore_type, said):
        text = data.decode("ascii", "replace")
        return _key(text, settings.key_password, said), _certificates(text, said)
    if settings.keystore_password is None:
        raise ConfigError(f"{said}: set ssl.keystore.password")
    if data.startswith(jks.MAGIC):
        return _of_jks(data, settings, said)
    store = _of_pkcs12(data, settings.keystore_password, said, "ssl.keystore.password")
    if settings.key_password not in (None, settings.keystore_password):
        raise ConfigError(f"{said}: the password of a key in PKCS12 is that of the store; remove ssl.key.password")
    return store.key, _in_pkcs12(store)


def _check_together(store: str, kind: str, location: str | None, password: str | None, inline: str) -> None:
    """Raises ConfigError for settings that Apache Kafka refuses together (DefaultSslEngineFactory).

    `store` is `ssl.keystore` or `ssl.truststore`; `inline` names the settings that have the store in them, empty if
    there are none.
    """
    if inline and kind != PEM:
        raise ConfigError(f"{inline} needs {store}.type=PEM, but it is {kind}")
    if inline and location is not None:
        raise ConfigError(f"{inline} and {store}.location={location} are both set; remove one of them")
    if password is None:
        return
    if inline or (kind == PEM and location is not None):
        only = " only ssl.key.password, that of an encrypted key, can be set" if store == "ssl.keystore" else ""
        raise ConfigError(f"{store}.password is set, but a store of type PEM has none;{only or ' remove it'}")
    if location is None:
        raise ConfigError(f"{store}.password is set, but {store}.location is not; set both or none")


def _trusted(data: bytes, settings: TlsSettings) -> list[Certificate]:
    said = f"ssl.truststore.location={settings.truststore_location}"
    if _is_pem(data, settings.truststore_type, said):
        return _certificates(data.decode("ascii", "replace"), said)
    password = settings.truststore_password
    if data.startswith(jks.MAGIC):
        try:
            return _loaded(jks.read_jks(data, password).trusted)
        except unreadable():
            raise ConfigError(f"{said}: damaged, or ssl.truststore.password is not its password") from None
    return _in_pkcs12(_of_pkcs12(data, password, said, "ssl.truststore.password"))


def _of_pkcs12(data: bytes, password: str | None, said: str, setting: str) -> PKCS12KeyAndCertificates:
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    _check_iterations(data, said)
    try:
        return load_pkcs12(data, None if password is None else password.encode())
    except unreadable():
        raise ConfigError(f"{said}: damaged, or {setting} is not its password") from None


def _in_pkcs12(store: PKCS12KeyAndCertificates) -> list[Certificate]:
    own = [store.cert.certificate] if store.cert else []
    return [*own, *(each.certificate for each in store.additional_certs)]


def _read(path: str, setting: str, read: Read) -> bytes:
    try:
        return read(path)
    except OSError as error:
        raise ConfigError(f"{setting}={path}: {error.strerror or error}") from None


def _of_jks(data: bytes, settings: TlsSettings, said: str) -> tuple[PrivateKeyTypes | None, list[Certificate]]:
    """The first key of a JKS file, and its certificates."""
    from cryptography.hazmat.primitives.serialization import load_der_private_key

    password = settings.keystore_password or ""
    try:
        store = jks.read_jks(data, password)
    except jks.Damaged:
        raise ConfigError(f"{said}: damaged, or ssl.keystore.password is not its password") from None
    if not store.keys:
        return None, []
    try:
        own = jks.unprotected(store.keys[0], password if settings.key_password is None else settings.key_password)
        return load_der_private_key(own, None), _loaded(store.keys[0].chain)
    except unreadable():
        raise ConfigError(f"{said}: the key is damaged, or ssl.key.password is not its password") from None


def _loaded(certificates: Iterable[bytes]) -> list[Certificate]:
    """Parse the certificates. Raises one of `unreadable` if a certificate is damaged."""
    from cryptography.x509 import load_der_x509_certificate

    return [load_der_x509_certificate(each) for each in certificates]


def _is_pem(data: bytes, kind: str, said: str) -> bool:
    """Whether a store is PEM; if not, it is PKCS12 or JKS. Raises ConfigError if it does not have the configured
    type."""
    if kind != PEM and kind.upper() not in ("PKCS12", "JKS"):
        raise ConfigError(f"{said}: its type {kind} is not known; use PEM, PKCS12 or JKS")
    is_binary = data.startswith((SEQUENCE, jks.MAGIC))
    if (kind == PEM) == is_binary:
        actual = "PKCS12 or JKS" if is_binary else "neither PKCS12 nor JKS; if it is PEM, set the type to PEM"
        raise ConfigError(f"{said}: its type is set to {kind}, but it is {actual}")
    return kind == PEM


def _key(text: str, password: str | None, said: str) -> PrivateKeyTypes | None:
    begun = KEY.search(text)
    found = next(_blocks(text[begun.start() :], begun[1]), None) if begun else None
    if found is None:
        raise ConfigError(f"{said}: no complete private key in PEM format in it")
    if begun and KEY.search(text, begun.end()):
        raise ConfigError(f"{said}: more than one private key in it; leave one")
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    is_encrypted = "ENCRYPTED" in found
    if is_encrypted and password is None:
        raise ConfigError(f"{said}: the key is encrypted; set ssl.key.password")
    if not is_encrypted and password is not None:
        raise ConfigError(f"{said}: the key is not encrypted, but ssl.key.password is set; remove it")
    try:
        _check_iterations(base64.b64decode("".join(found.split("\n")[1:-1])) if is_encrypted else b"", said)
        return load_pem_private_key(found.encode(), password.encode() if password else None)
    except unreadable():
        why = "damaged, or ssl.key.password is not its password" if is_encrypted else "damaged"
        raise ConfigError(f"{said}: the key is {why}") from None


def _blocks(text: str, label: str) -> Iterator[str]:
    """The complete blocks with a label, in time proportional to the length of the text."""
    begin, end = f"-----BEGIN {label}-----", f"-----END {label}-----"
    at = text.find(begin)
    while at >= 0:
        stop = text.find(end, at)
        if stop < 0:
            return
        stop += len(end)
        yield text[at:stop]
        at = text.find(begin, stop)


def _check_iterations(data: bytes, said: str) -> None:
    """Raises ConfigError for a store that would take seconds to open, because no client would be served in that
    time."""
    most = max(der_iterations(data), default=0)
    if most > ITERATIONS_MAX:
        raise ConfigError(f"{said}: it is encrypted with {most} iterations; at most {ITERATIONS_MAX} are allowed")


def _certificates(text: str, said: str) -> list[Certificate]:
    from cryptography.x509 import load_pem_x509_certificate

    blocks = list(islice(_blocks(text, CERTIFICATE), CERTIFICATES_MAX + 1))
    if not blocks or len(blocks) > CERTIFICATES_MAX:
        number = "more" if blocks else "no"
        raise ConfigError(f"{said}: {number} complete certificates in PEM format; write 1 to {CERTIFICATES_MAX}")
    try:
        return [load_pem_x509_certificate(block.encode()) for block in blocks]
    except unreadable():
        raise ConfigError(f"{said}: a certificate is damaged") from None
