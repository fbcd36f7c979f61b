"""Creates TLS contexts for the real World from keys in memory, and explains failed handshakes."""

from __future__ import annotations

import os
import ssl
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple

STORE_BYTES_MAX = 1 << 20
_NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
HANDSHAKES_MAX = 256
"""The most handshakes in progress at one listener. If there are more, the oldest handshake of the address with the most
handshakes is ended."""
HANDSHAKE_S = 10.0
VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
PLAIN = ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's error reasons for bytes that are not TLS."""

USE_TLS = "set security.protocol=SSL (or SASL_SSL) in the client; between nodes, compare listener.security.protocol.map"

REFUSED_CERTIFICATE = {
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority of this broker's certificate; set "
    "ssl.truststore.location (ssl.ca.location) in the client",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "this broker's certificate has expired; put a new one into "
    "ssl.keystore.location",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept this broker's certificate, which probably has another host name "
    "than the client dialled; dial a name that is in it (advertised.listeners), or put that name into it",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept this broker's certificate, and Java does not say why: it "
    "does not trust the authority (ssl.truststore.location in the client), the certificate has expired, or it has "
    "another host name than the client dialled",
}
"""OpenSSL's names for the alerts of a client that refuses a certificate (RFC 8446, 6.2), and the remedies."""

TlsContext = ssl.SSLContext
HANDSHAKE_ERRORS = (ssl.SSLError, ConnectionResetError, ConnectionAbortedError)
"""How a handshake that this process began can fail once the TCP connection is made: the loop raises the second for a
peer that closes it, and the third for one that is silent too long."""


class TlsAcceptor(NamedTuple):
    """The settings with which a listener accepts TLS. `context` is called for each handshake and never raises.

    `refused` is called with the address and the reason when a handshake fails, and `broken` when TLS fails later on a
    connection. `admits` is called with the address before a handshake. It returns None to serve the connection, or the
    seconds after which it is closed without a handshake.
    """

    context: Callable[[], ssl.SSLContext]
    refused: Callable[[str, str], None]
    broken: Callable[[str, str], None]
    admits: Callable[[str], float | None]
    if_plain: str = USE_TLS
    """The remedy for a client that did not use TLS."""
    handshakes_max: int = HANDSHAKES_MAX


def read_store(path: str) -> bytes:
    """The content of a file that contains keys. Raises OSError, also if every user may read the file or if it is too
    large."""
    with _opened(path) as file:
        if sys.platform != "win32" and os.fstat(file.fileno()).st_mode & stat.S_IRWXO:  # there, the mode says nothing
            raise PermissionError(f"every user of this machine can read or change it; run: chmod o-rwx {path}")
        return file.read(STORE_BYTES_MAX)


def read_public(path: str) -> bytes:
    """The content of a file that contains no secret. Raises OSError."""
    with _opened(path) as file:
        return file.read(STORE_BYTES_MAX)


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """Open a file. Pipes and devices are refused, because opening or reading them may block forever. Raises OSError."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NONBLOCK)) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError("a pipe or a device, and not a file")
        if about.st_size > STORE_BYTES_MAX:
            raise OSError(f"larger than {STORE_BYTES_MAX} bytes")
        yield file


def stamp(path: str) -> tuple[int, ...]:
    """A value that changes whenever the file changes; empty if there is no file."""
    try:
        about = os.stat(path)
    except OSError:
        return ()
    return about.st_mtime_ns, about.st_size, about.st_ino


class Material(NamedTuple):
    """The contents of a TLS context, in PEM with an unencrypted key. `trust_pem` is empty without a trust store.

    `ciphers` is OpenSSL's list for TLS 1.2, empty for its default. Nothing secret is ever logged.
    """

    own_pem: bytes
    """The key and its certificates; empty for a client without a certificate."""
    trust_pem: str
    versions: tuple[str, str]
    ciphers: str

    def __repr__(self) -> str:
        return f"Material({self.versions})"


def server_context(material: Material, client_auth: str) -> ssl.SSLContext:
    """A context for accepted sockets. Raises ssl.SSLError for values that OpenSSL rejects."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, material)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    if material.trust_pem:
        context.load_verify_locations(cadata=material.trust_pem)
    context.verify_mode = VERIFY[client_auth]
    return context


def client_context(material: Material, *, check_host: bool) -> ssl.SSLContext:
    """A context for connecting to listeners. Without a trust store, it trusts the machine's certificate authorities, as
    Java does. Raises ssl.SSLError."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, material)
    context.check_hostname = check_host
    if material.trust_pem:
        context.load_verify_locations(cadata=material.trust_pem)
    else:
        context.load_default_certs()
    return context


def _context(protocol: int, material: Material) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version, context.maximum_version = (VERSIONS[each] for each in material.versions)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if material.ciphers:
        context.set_ciphers(material.ciphers)
    if material.own_pem:
        with named_file(material.own_pem) if sys.platform == "win32" else _unnamed_file(material.own_pem) as path:
            context.load_cert_chain(path)
    return context


@contextmanager
def _unnamed_file(content: bytes) -> Iterator[str]:
    """The path of a file in memory. It is needed because Python loads a key only from a file
    (`SSLContext.load_cert_chain`)."""
    import tempfile  # needed only with TLS

    create: Callable[[str], int] | None = getattr(os, "memfd_create", None)
    with tempfile.TemporaryFile() if create is None else os.fdopen(create("tls"), "w+b") as file:
        file.write(content)
        file.flush()
        file.seek(0)
        yield f"/dev/fd/{file.fileno()}"


@contextmanager
def named_file(content: bytes) -> Iterator[str]:
    """The path of a temporary file that only this user can read, for a system whose files all have names."""
    import tempfile

    descriptor, path = tempfile.mkstemp(prefix="kpybroker-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        yield path
    finally:
        os.unlink(path)


def why_failed(error: OSError, if_plain: str = USE_TLS) -> str:
    """The reason why a client's handshake failed, and the remedy if there is one."""
    reason = getattr(error, "reason", None) or ""
    if reason in PLAIN:
        return f"it did not use TLS, but this listener does; {if_plain}"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return (
            "it presented no certificate, but this listener has ssl.client.auth=required; set ssl.keystore.location "
            "in the client"
        )
    if reason in REFUSED_CERTIFICATE:
        return REFUSED_CERTIFICATE[reason]
    if reason == "CERTIFICATE_VERIFY_FAILED":
        why = getattr(error, "verify_message", reason)
        return f"this broker does not trust its certificate ({why}); see ssl.truststore"
    if reason in ("UNSUPPORTED_PROTOCOL", "NO_SHARED_CIPHER", "TLSV1_ALERT_PROTOCOL_VERSION"):
        return f"no version or cipher suite in common ({reason}); see ssl.enabled.protocols and ssl.cipher.suites"
    if isinstance(error, ssl.SSLError):
        return reason.replace("_", " ").lower() or "TLS failed"
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return f"it took longer than {HANDSHAKE_S:.0f} s"
    return (
        "it closed the connection without an alert, as asyncio does if it does not accept this broker's certificate: "
        "its authority, its end, or its host names"
    )


def why_not_dialled(error: OSError) -> str:
    """The reason for one of HANDSHAKE_ERRORS in a handshake that this process began, and the remedy."""
    reason = getattr(error, "reason", None) or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"this node does not accept its certificate: {error.verify_message}; see ssl.truststore and "
            "ssl.endpoint.identification.algorithm"
        )
    if isinstance(error, ConnectionAbortedError):
        return f"the handshake took longer than {HANDSHAKE_S:.0f} s"
    if reason in PLAIN or not isinstance(error, ssl.SSLError):
        said = "it does not use TLS" if reason else "it closed the connection, as a listener without TLS does"
        return f"{said}; compare security.protocol, or listener.security.protocol.map on this node, with its listener"
    return f"{reason.replace('_', ' ').lower() or 'TLS failed'}; see its log"
