"""An identity provider for tests: keys, tokens signed with them, and an HTTP server that publishes the public keys.

Tokens are built by hand here, because tests need tokens that are invalid in any way.
"""

import base64
import json
import ssl
import threading
import time
import warnings
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

LIFETIME_S = 300
CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
Key = RSAKey | ECKey | OKPKey | OctKey


def encoded(part: object) -> str:
    """base64url of a value as JSON; text and bytes are encoded unchanged."""
    if isinstance(part, str):
        part = part.encode()
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def claims_of(name: str = "ann", /, **changed: object) -> dict[str, object]:
    """Claims that are valid for the next minutes, with `changed` applied; None removes a claim."""
    now_s = int(time.time())
    claims = {"sub": name, "iat": now_s, "exp": now_s + LIFETIME_S, **changed}
    return {claim: value for claim, value in claims.items() if value is not None}


def unsecured(claims: object, header: object = None, signature: str = "") -> str:
    """An unsecured token."""
    return f"{encoded({'alg': 'none'} if header is None else header)}.{encoded(claims)}.{signature}"


def first_message(token: str, authzid: str = "", extensions: str = "") -> bytes:
    """The first message of a client; `extensions` are `key=value` pairs, each followed by \x01."""
    wanted = f"a={authzid}" if authzid else ""
    return f"n,{wanted},\x01auth=Bearer {token}\x01{extensions}\x01".encode()


def new_key(algorithm: str, bits: int = 2048) -> Key:
    """A private key for an algorithm of RFC 7518; for EdDSA one of Ed25519."""
    if algorithm.startswith("ES"):
        return ECKey.generate_key(CURVES[algorithm])
    if algorithm == "EdDSA":
        return OKPKey.generate_key("Ed25519")
    if algorithm.startswith("HS"):
        return OctKey.generate_key(512)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)  # some are too short on purpose
        return RSAKey.generate_key(bits)


class IdentityProvider:
    """Signs tokens. `keys` are private, by name; `shown` are the published ones."""

    def __init__(self, *algorithms: str) -> None:
        self.keys: dict[str, tuple[str, Key]] = {each: (each, new_key(each)) for each in algorithms}
        self.shown = list(self.keys)

    def add(self, kid: str, algorithm: str, *, bits: int = 2048) -> None:
        """Add another key, which is not published yet."""
        self.keys[kid] = algorithm, new_key(algorithm, bits)

    def row(self, kid: str, **members: object) -> dict[str, Any]:
        """The public key as a row of a set."""
        _, key = self.keys[kid]
        return {**key.as_dict(private=isinstance(key, OctKey)), "kid": kid, "use": "sig", **members}

    def key_set(self, *more: Mapping[str, object]) -> str:
        """The set of all published keys, followed by other rows."""
        return json.dumps({"keys": [*(self.row(kid) for kid in self.shown), *more]})

    def token(
        self, claims: object, kid: str | None = None, header: Mapping[str, object] | None = None, *, alg: str = ""
    ) -> str:
        """A signed token. `header` replaces the usual one, independently of the key; `alg` is another algorithm."""
        name = kid or self.shown[0]
        algorithm, key = self.keys[name]
        head = {"alg": alg or algorithm, "kid": name} if header is None else header
        signed = f"{encoded(head)}.{encoded(claims)}"
        wanted = alg or algorithm
        model = JWSRegistry.algorithms["Ed25519" if wanted == "EdDSA" else wanted]
        return f"{signed}.{encoded(model.sign(signed.encode(), key))}"


class KeyServer:
    """Serves pages on 127.0.0.1 within its `with` block, by https if it has a TLS context. `pages` maps each path to
    its status, headers and body."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[str] = []
        """The requested paths, in order."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def show(self, path: str, body: str | bytes, status: int = 200, **headers: str) -> str:
        """Serve a page from now on. Returns its URL."""
        self.pages[path] = status, headers, body.encode() if isinstance(body, str) else body
        return self.url + path

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                status, headers, body = server.pages.get(self.path, (404, {}, b""))
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler
