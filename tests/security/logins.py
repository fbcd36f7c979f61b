"""A listener's mechanisms with test users, and the frames that clients send to log in."""

from __future__ import annotations

import hashlib
from functools import partial
from itertools import count
from struct import pack
from typing import Any

from kpybroker.handlers import refused
from kpybroker.security.sasl.exchange import Mechanism
from kpybroker.security.sasl.plain import PlainExchange
from kpybroker.security.sasl.scram import MECHANISMS, ScramClient, ScramExchange
from kpybroker.security.sasl.session import LoginSession
from kpybroker.security.scram import DIGESTS, ScramCredential, ScramMechanism, credential_of
from kpybroker.wire.api import by_name
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.frame import parse_response_header
from kpybroker.wire.rpc import sasl_authenticate, sasl_handshake

PASSWORDS = {"ann": "a secret of ann", "bob": "böb's"}
SECRET = b"of the node"
ITERATIONS = 4096


def credential(mechanism: ScramMechanism, password: str) -> ScramCredential:
    salted = hashlib.pbkdf2_hmac(DIGESTS[mechanism], password.encode(), b"salt", ITERATIONS)
    return credential_of(mechanism, b"salt", salted, ITERATIONS)


CREDENTIALS = {
    mechanism: {user: credential(mechanism, password) for user, password in PASSWORDS.items()}
    for mechanism in MECHANISMS.values()
}


def mechanisms(lifetime_ms: int = 0) -> dict[str, Mechanism]:
    """PLAIN and both SCRAM mechanisms, with nonces from a counter."""
    numbers = count()

    def scram(mechanism: ScramMechanism) -> ScramExchange:
        return ScramExchange(mechanism, CREDENTIALS[mechanism].get, f"server{next(numbers)}", SECRET)

    plain = Mechanism(partial(PlainExchange, PASSWORDS), lifetime_ms)
    return {"PLAIN": plain} | {name: Mechanism(partial(scram, each), lifetime_ms) for name, each in MECHANISMS.items()}


class Clock:
    """Milliseconds that a test sets."""

    def __init__(self) -> None:
        self.now_ms = 1000

    def __call__(self) -> int:
        return self.now_ms


def session(lifetime_ms: int = 0, clock: Clock | None = None) -> LoginSession:
    return LoginSession(mechanisms(lifetime_ms), refused, clock or Clock())


def frame(name: str, request: Any, version: int) -> memoryview:
    """A request without its size."""
    api = by_name[name]
    tags = b"\0" if version >= api.flexible else b""
    return memoryview(pack(">hhih", api.key, version, 7, 1) + b"c" + tags + build(request, version))


def handshake(mechanism: str, version: int = 1) -> memoryview:
    return frame("SaslHandshake", sasl_handshake.Request(mechanism=mechanism), version)


def token(data: bytes, version: int = 1) -> memoryview:
    return frame("SaslAuthenticate", sasl_authenticate.Request(auth_bytes=data), version)


def response(name: str, version: int, answer: list[bytes | memoryview]) -> Any:
    """The response in a frame with its size."""
    api = by_name[name]
    whole = memoryview(b"".join(answer))
    _, body_at = parse_response_header(whole[4:], api, version)
    return parse(api.response, version, whole[4:], body_at)


def answered(session_: LoginSession, data: bytes, version: int = 1) -> sasl_authenticate.Response:
    """Send one token. Returns the response."""
    told: sasl_authenticate.Response = response("SaslAuthenticate", version, session_.take(token(data, version)).answer)
    return told


def log_in(session_: LoginSession, mechanism: str, user: str, password: str) -> sasl_authenticate.Response:
    """Play a whole login, beginning with the handshake. Returns the last response."""
    session_.take(handshake(mechanism))
    if mechanism == "PLAIN":
        return answered(session_, f"\0{user}\0{password}".encode())
    client = ScramClient(MECHANISMS[mechanism], user, password, "client")
    told = answered(session_, client.first())
    if told.error_code:
        return told
    return answered(session_, client.final(told.auth_bytes))
