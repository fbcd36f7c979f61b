"""TLS in the real World: contexts made from keys in memory, and the handshakes of accepted sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import stat
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import IO, NamedTuple

STORE_BYTES_MAX = 1 << 20
HANDSHAKES_MAX = 256
"""The most handshakes in progress at one listener. Beyond it, the address with the most handshakes loses its oldest
one."""
HANDSHAKE_S = 10.0
ACCEPTED_A_TURN = 32
PAUSE_S = 0.1
"""How long a listener waits when the process has no file handle for a new socket."""
VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
PLAIN = ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's error reasons for bytes that are not TLS."""

USE_TLS = "set security.protocol=SSL (or SASL_SSL) in the client"

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
"""OpenSSL's words for the alerts of a client that refuses a certificate (RFC 8446, 6.2), and the remedies."""

TlsContext = ssl.SSLContext
TlsError = ssl.SSLError
Factory = Callable[[], asyncio.BaseProtocol]


class TlsAcceptor(NamedTuple):
    """How a listener accepts TLS. `context` is called for each handshake and never raises. `refused` is called with the
    address of a failed handshake and the reason."""

    context: Callable[[], ssl.SSLContext]
    refused: Callable[[str, str], None]
    if_plain: str = USE_TLS
    """The remedy for a client that spoke no TLS."""
    handshakes_max: int | None = None
    """HANDSHAKES_MAX by default."""


def read_store(path: str) -> bytes:
    """The content of a file that holds keys. Raises OSError, also if every user may read the file or if it is too
    large."""
    with open(path, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(f"not a file: {path}")
        if about.st_size > STORE_BYTES_MAX:
            raise OSError(f"larger than {STORE_BYTES_MAX} bytes")
        if about.st_mode & stat.S_IRWXO:
            raise PermissionError(f"every user of this machine may read or change it; run: chmod o-rwx {path}")
        return file.read(STORE_BYTES_MAX)


def read_public(path: str) -> bytes:
    """The content of a file that contains no secret. Raises OSError."""
    with open(path, "rb") as file:
        data = file.read(STORE_BYTES_MAX + 1)
    if len(data) > STORE_BYTES_MAX:
        raise OSError(f"larger than {STORE_BYTES_MAX} bytes")
    return data


def stamp(path: str) -> tuple[int, ...]:
    """A value that changes whenever the file does; empty if there is no file."""
    try:
        about = os.stat(path)
    except OSError:
        return ()
    return about.st_mtime_ns, about.st_size, about.st_ino


class Material(NamedTuple):
    """The contents of a TLS context, as PEM; the key is not encrypted. `trust_pem` is empty without a trust store.

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


class SecureListener:
    """Accepts sockets of one listening socket, and hands over those whose handshake succeeds."""

    def __init__(self, listening: socket.socket, factory: Factory, acceptor: TlsAcceptor) -> None:
        self._listening = listening
        self._factory = factory
        self._acceptor = acceptor
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[asyncio.Task[None], str] = {}
        self._resume: asyncio.TimerHandle | None = None
        self._loop.add_reader(listening, self._accept)

    @property
    def handshakes(self) -> int:
        """How many handshakes are in progress."""
        return len(self._under_way)

    def close(self) -> None:
        """Stop accepting, and cancel the handshakes in progress."""
        if self._resume is not None:
            self._resume.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for task in list(self._under_way):
            task.cancel()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_A_TURN):
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # out of file descriptors or memory: connections may close before the next attempt
                self._loop.remove_reader(self._listening)
                self._resume = self._loop.call_later(PAUSE_S, self._accept_again)
                return
            self._begin(accepted, str(address[0]))

    def _accept_again(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _begin(self, accepted: socket.socket, host: str) -> None:
        most = self._acceptor.handshakes_max or HANDSHAKES_MAX
        if len(self._under_way) >= most:
            crowd = Counter(self._under_way.values()).most_common(1)[0][0]
            oldest = next(task for task, other in self._under_way.items() if other == crowd)
            del self._under_way[oldest]
            oldest.cancel()
            self._acceptor.refused(crowd, f"{most} handshakes were in progress, most of them from this address")
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._shake_hands(accepted, host))
        self._under_way[task] = host
        task.add_done_callback(lambda done: self._under_way.pop(done, None))

    async def _shake_hands(self, accepted: socket.socket, host: str) -> None:
        is_served = False
        try:
            await self._loop.connect_accepted_socket(
                self._factory, accepted, ssl=self._acceptor.context(), ssl_handshake_timeout=HANDSHAKE_S
            )
            is_served = True
        except OSError as error:  # also ssl.SSLError, ConnectionError and TimeoutError
            self._acceptor.refused(host, why_failed(error, self._acceptor.if_plain))
        finally:
            if not is_served:
                accepted.close()


def why_failed(error: OSError, if_plain: str = USE_TLS) -> str:
    """What went wrong in a handshake, and the remedy if there is one."""
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
        "it closed the connection without a word, as asyncio does if it does not accept this broker's certificate: its "
        "authority, its end, or its host names"
    )


def why_not_dialled(error: ssl.SSLError) -> str:
    """What went wrong in a handshake with a listener that was dialled, and the remedy."""
    reason = error.reason or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"this node does not accept its certificate: {error.verify_message}; see ssl.truststore and "
            "ssl.endpoint.identification.algorithm"
        )
    if reason in PLAIN:
        return "it does not use TLS; compare listener.security.protocol.map on both nodes"
    return f"{reason.replace('_', ' ').lower() or 'TLS failed'}; see its log"
