"""TLS in the real World: contexts made from keys in memory, and what is said of a handshake that fails."""

from __future__ import annotations

import os
import ssl
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple

STORE_BYTES_MAX = 1 << 20
HANDSHAKE_S = 10.0
VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
PLAIN = ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's words for bytes that are no TLS."""

TlsContext = ssl.SSLContext
TlsError = ssl.SSLError


class TlsAcceptor(NamedTuple):
    """How a listener accepts TLS. `context` is asked for each handshake; it never raises. `refused` is told the address
    of a failed handshake and why it failed, and `broken` that of a connection whose TLS failed later. `admits` is asked
    before a handshake, with the address: after how many seconds the connection is closed without one; None to serve
    it."""

    context: Callable[[], ssl.SSLContext]
    refused: Callable[[str, str], None]
    broken: Callable[[str, str], None]
    admits: Callable[[str], float | None]


def read_store(path: str) -> bytes:
    """The content of a file with keys. Raises OSError, also for a file that others may read, or one too large."""
    with _opened(path) as file:
        if os.fstat(file.fileno()).st_mode & stat.S_IRWXO:
            raise PermissionError(f"every user of this machine may read or change it; run: chmod o-rwx {path}")
        return file.read(STORE_BYTES_MAX)


def read_public(path: str) -> bytes:
    """The content of a file that holds no secret. Raises OSError."""
    with _opened(path) as file:
        return file.read(STORE_BYTES_MAX)


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """A file that is no pipe or device: reading one of these may wait for ever, and so may opening it. Raises
    OSError."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError("a pipe or a device, and not a file")
        if about.st_size > STORE_BYTES_MAX:
            raise OSError(f"larger than {STORE_BYTES_MAX} bytes")
        yield file


def stamp(path: str) -> tuple[int, ...]:
    """Changes when the file does; empty if there is none."""
    try:
        about = os.stat(path)
    except OSError:
        return ()
    return about.st_mtime_ns, about.st_size, about.st_ino


class Material(NamedTuple):
    """What a context is made of, as PEM; the key is not encrypted. `trust_pem` is empty without a trust store.

    `ciphers` is OpenSSL's list for TLS 1.2, empty for its default. Never shown.
    """

    own_pem: bytes
    """The key and its certificates; empty for a client without a certificate."""
    trust_pem: str
    versions: tuple[str, str]
    ciphers: str

    def __repr__(self) -> str:
        return f"Material({self.versions})"


def server_context(material: Material, client_auth: str) -> ssl.SSLContext:
    """A context for accepted sockets. Raises ssl.SSLError for what OpenSSL does not take."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, material)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    if material.trust_pem:
        context.load_verify_locations(cadata=material.trust_pem)
    context.verify_mode = VERIFY[client_auth]
    return context


def client_context(material: Material, *, check_host: bool) -> ssl.SSLContext:
    """A context to dial with. Without a trust store, the machine's authorities are trusted, as by Java. Raises
    ssl.SSLError."""
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
        with _memory() as file:
            file.write(material.own_pem)
            file.flush()
            file.seek(0)
            context.load_cert_chain(f"/dev/fd/{file.fileno()}")
    return context


def _memory() -> IO[bytes]:
    """A file without a name: Python loads a key only from a file (`SSLContext.load_cert_chain`)."""
    create: Callable[[str], int] | None = getattr(os, "memfd_create", None)
    return tempfile.TemporaryFile() if create is None else os.fdopen(create("tls"), "w+b")


def why_failed(error: OSError) -> str:
    """What went wrong in a handshake, and the remedy if there is one."""
    reason = getattr(error, "reason", None) or ""
    if reason in PLAIN:
        return "it spoke no TLS, and this listener does; set security.protocol=SSL (or SASL_SSL) in the client"
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it showed no certificate, and ssl.client.auth=required here; set ssl.keystore.location in the client"
    if reason in ("TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_CERTIFICATE_UNKNOWN", "SSLV3_ALERT_BAD_CERTIFICATE"):
        return (
            "it does not trust this broker's certificate; set ssl.truststore.location (ssl.ca.location) in the client"
        )
    if reason == "CERTIFICATE_VERIFY_FAILED":
        return f"its certificate is not trusted here ({getattr(error, 'verify_message', reason)}); see ssl.truststore"
    if reason in ("UNSUPPORTED_PROTOCOL", "NO_SHARED_CIPHER", "TLSV1_ALERT_PROTOCOL_VERSION"):
        return f"no version or cipher suite in common ({reason}); see ssl.enabled.protocols and ssl.cipher.suites"
    if isinstance(error, ssl.SSLError):
        return reason.replace("_", " ").lower() or "TLS failed"
    if isinstance(error, ConnectionAbortedError | TimeoutError):
        return f"it took longer than {HANDSHAKE_S:.0f} s"
    return "it closed the connection"


def why_not_dialled(error: ssl.SSLError) -> str:
    """What went wrong in a handshake with a listener that was dialled, and the remedy."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not accepted here: {error.verify_message}; see ssl.truststore and "
            "ssl.endpoint.identification.algorithm"
        )
    if reason in PLAIN:
        return "it speaks no TLS; see listener.security.protocol.map there and here"
    return f"{reason.replace('_', ' ').lower() or 'TLS failed'}; see its log"
