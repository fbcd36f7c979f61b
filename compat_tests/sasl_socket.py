"""A bare socket that logs in step by step, so that each step can be invalid."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Iterator
from typing import Any

from kpybroker.config.login import Login
from kpybroker.wire.api import by_name
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.rpc import api_versions, sasl_authenticate, sasl_handshake
from oracle.asking import Door, exchange_tokens

HOST = "127.0.0.1"
TIMEOUT_S = 20.0
NO_TAGS_IN_HEADER = "ApiVersions"


class SaslSocket:
    """One connection. Raises ConnectionError if a response is missing."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        """`context`: for a listener with TLS."""
        self._socket: socket.socket
        if context is None:
            self._socket = socket.create_connection((HOST, port), timeout=TIMEOUT_S)
        else:
            self._socket = Door(context, None).open((HOST, port), TIMEOUT_S)

    def send(self, name: str, request: Any, version: int) -> None:
        api = by_name[name]
        tags = b"\0" if version >= api.flexible else b""
        head = struct.pack(">hhih", api.key, version, 3, 3) + b"raw" + tags
        self.send_frame(head + build(request, min(version, api.max)))

    def send_frame(self, data: bytes) -> None:
        self.send_bytes(struct.pack(">i", len(data)) + data)

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self, name: str, version: int) -> Any:
        """The next response."""
        api = by_name[name]
        begin = 5 if version >= api.flexible and name != NO_TAGS_IN_HEADER else 4
        return parse(api.response, version, memoryview(self.frame()), begin)

    def frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def ask(self, name: str, request: Any, version: int = 1) -> Any:
        self.send(name, request, version)
        return self.receive(name, version)

    def versions(self) -> None:
        request = api_versions.Request(client_software_name="raw", client_software_version="1")
        assert self.ask("ApiVersions", request, 3).error_code == 0

    def handshake(self, mechanism: str, version: int = 1) -> sasl_handshake.Response:
        told: sasl_handshake.Response = self.ask("SaslHandshake", sasl_handshake.Request(mechanism=mechanism), version)
        return told

    def token(self, data: bytes, version: int = 1) -> sasl_authenticate.Response:
        told: sasl_authenticate.Response = self.ask(
            "SaslAuthenticate", sasl_authenticate.Request(auth_bytes=data), version
        )
        return told

    def log_in(self, mechanism: str, user: str, password: str, *, extensions: str = "") -> sasl_authenticate.Response:
        """Send the handshake and the tokens. Returns the last response. `extensions` are for the first message of
        SCRAM."""
        assert self.handshake(mechanism).error_code == 0
        return exchange_tokens(self.token, Login(mechanism, user, password), extensions)

    def is_closed(self) -> bool:
        """Whether the broker closes the connection without another byte."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            part = self._socket.recv(count - len(found))
            if not part:
                raise ConnectionError("closed")
            found += part
        return bytes(found)


@contextlib.contextmanager
def sasl_socket(port: int, context: ssl.SSLContext | None = None) -> Iterator[SaslSocket]:
    with contextlib.closing(SaslSocket(port, context)) as opened:
        yield opened
