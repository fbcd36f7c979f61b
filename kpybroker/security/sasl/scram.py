"""Implements SASL SCRAM: both sides prove that they know the password, and neither sends it (RFC 5802, KIP-84).

The password is encoded in UTF-8 without SASLprep, as in Apache Kafka. Channel binding is not supported: `c=` is parsed
but not compared.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, Protocol

from kpybroker.security.principal import USER, Principal
from kpybroker.security.sasl.exchange import LoginRefused, Preparation
from kpybroker.security.scram import (
    DIGESTS,
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    made_up_salt,
)

MECHANISMS: Mapping[str, ScramMechanism] = MappingProxyType(
    {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
)
"""The mechanisms by their SASL names."""
NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
EXTENSIONS = r"(?:,[A-Za-z]+=[\x01-\x2b\x2d-\x7f]+)*"
NONCE = r"[\x21-\x2b\x2d-\x7e]+"
BASE64 = r"[A-Za-z0-9/+]*={0,2}"
CLIENT_FIRST = re.compile(rf"n,(?:a=({NAME}))?,(n=({NAME}),r=({NONCE})({EXTENSIONS}))")
CLIENT_FINAL = re.compile(rf"(c={BASE64},r=({NONCE}){EXTENSIONS}),p=({BASE64})")
SERVER_FIRST = re.compile(rf"r=({NONCE}),s=({BASE64}),i=([0-9]{{1,9}}){EXTENSIONS}")
SERVER_FINAL = re.compile(rf"v=({BASE64}){EXTENSIONS}")
MESSAGE_MAX = 4096
"""The most bytes of a client's message; Kafka's clients send about a hundred. The first message is kept until the login
ends, and for 524,288 bytes the regular expressions above take 70 ms and 100 MB."""
ITERATIONS_LIMIT = 1 << 20
"""The most iterations that this client accepts from a server."""
OTHER_ID = "Authentication failed: Client requested an authorization id that is different from username"
Lookup = Callable[[str], ScramCredential | None]
"""Returns the credential of a user for the mechanism, or None."""
BY_TOKEN = "tokenauth=true"
"""The extension for a login with a delegation token (KIP-48): its id is the name, and its secret is the password."""


NONCE_BYTES = 18
SALTED_MAX = 64
"""The most salted passwords that are cached for logins of this process at other nodes. The least recently used one is
evicted first."""


def new_nonce(secret_bytes: Callable[[int], bytes]) -> str:
    """A nonce of printable characters, for one login. `secret_bytes` is the method of a World."""
    return base64.urlsafe_b64encode(secret_bytes(NONCE_BYTES)).decode()


class TokenLogin(NamedTuple):
    """The credential of a delegation token, and the principal and the lifetime of a login with it."""

    credential: ScramCredential
    principal: Principal
    lifetime_ms: int


class TokenLookup(Protocol):
    """The delegation tokens that are valid at a listener. Their credentials must be derived first, which takes a
    while."""

    def derivation(self, mechanism: ScramMechanism, token_id: str) -> Preparation | None:
        """Work that must be done before `find`; None if there is none."""

    def find(self, mechanism: ScramMechanism, token_id: str) -> TokenLogin | None:
        """The login with this token; None if there is no such token, or if it has expired."""


class ScramExchange:
    """The server side of one login. `nonce` is printable and unique. Without `tokens`, delegation tokens are not
    accepted.

    A name without a credential has a salt that is derived from the name and `secret`, so that it is always the same.
    Its login fails at the proof, like a login with a wrong password, so that clients cannot find out which names have
    credentials.
    """

    def __init__(
        self, mechanism: ScramMechanism, lookup: Lookup, nonce: str, secret: bytes, tokens: TokenLookup | None = None
    ) -> None:
        self._mechanism = mechanism
        self._digest = DIGESTS[mechanism]
        self._lookup = lookup
        self._nonce = nonce
        self._secret = secret
        self._tokens = tokens
        self._credential: ScramCredential | None = None
        self._login: tuple[Principal, int | None] | None = None
        """The principal that the client claims to be, and the lifetime of its login; None if the name is not known."""
        self._begun = ""
        """client-first-message-bare and server-first-message; empty before the first token."""
        self._principal: Principal | None = None

    @property
    def principal(self) -> Principal | None:
        return self._principal

    @property
    def lifetime_ms(self) -> int | None:
        return None if self._login is None else self._login[1]

    def preparation(self, token: bytes) -> Preparation | None:
        """The derivation of the credential of a delegation token."""
        if self._begun or self._tokens is None:
            return None
        form = _client_first(token)
        return self._tokens.derivation(self._mechanism, _unescaped(form[3])) if _is_by_token(form) else None

    def step(self, token: bytes) -> bytes:
        """Returns the server's first message and, at the second call, its final message. Raises LoginRefused."""
        return self._first(token) if not self._begun else self._final(token)

    def _first(self, token: bytes) -> bytes:
        form = _client_first(token)
        asked, bare, escaped, nonce, _ = form.groups()
        name = _unescaped(escaped)
        # both are always computed, so that the time reveals nothing
        found, faked = self._find(name, by_token=_is_by_token(form)), self._faked(name)
        if asked is not None and _unescaped(asked) != name:
            raise LoginRefused(OTHER_ID, OTHER_ID)
        if found is not None and found.iterations < ITERATIONS_MIN:
            raise LoginRefused(f"the stored credential has {found.iterations} iterations, not {ITERATIONS_MIN} or more")
        self._credential = credential = found or faked
        self._nonce = nonce + self._nonce
        salt = base64.b64encode(credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._begun = f"{bare},{answer}"
        return answer.encode()

    def _find(self, name: str, *, by_token: bool) -> ScramCredential | None:
        """Set `_login`, and return the credential."""
        if not by_token:
            found = self._lookup(name)
            self._login = None if found is None else (Principal(USER, name), None)
            return found
        token = None if self._tokens is None else self._tokens.find(self._mechanism, name)
        self._login = None if token is None else (token.principal, token.lifetime_ms)
        return None if token is None else token.credential

    def _final(self, token: bytes) -> bytes:
        form = CLIENT_FINAL.fullmatch(_text(token))
        credential, self._credential = self._credential, None  # a login has one attempt
        if form is None or credential is None:
            raise LoginRefused("the client's final message does not have the form of RFC 5802")
        without_proof, nonce, proof_text = form.groups()
        if not hmac.compare_digest(nonce, self._nonce):
            raise LoginRefused("the final message has a different nonce")
        proof = _bytes(proof_text)
        signed = f"{self._begun},{without_proof}".encode()
        signature = hmac.digest(credential.stored_key, signed, self._digest)
        if len(proof) != len(signature):
            raise LoginRefused("the proof does not have the length that the mechanism requires")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored_key = hashlib.new(self._digest, client_key).digest()
        if not hmac.compare_digest(stored_key, credential.stored_key) or self._login is None:
            raise LoginRefused("wrong password, or a user without a credential of this mechanism")
        self._principal = self._login[0]
        return b"v=" + base64.b64encode(hmac.digest(credential.server_key, signed, self._digest))

    def _faked(self, name: str) -> ScramCredential:
        size = hashlib.new(self._digest).digest_size
        salt = made_up_salt(self._secret, self._mechanism, name)
        key = hmac.digest(self._secret, name.encode(), "sha512")[:size]
        return ScramCredential(salt, key, key, ITERATIONS_MIN)


class ScramClient:
    """The client side of one login. `extensions`: the extensions of the first message, separated by `,`, such as
    BY_TOKEN."""

    def __init__(
        self, mechanism: ScramMechanism, user: str, password: str, nonce: str, *, extensions: str = ""
    ) -> None:
        self._digest = DIGESTS[mechanism]
        self._password = password.encode()
        self._nonce = nonce
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        if extensions:
            self._bare += f",{extensions}"
        self._expected = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """The final message, with the proof. Raises LoginRefused if the server's message or its number of iterations is
        invalid."""
        form = SERVER_FIRST.fullmatch(server_first.decode("ascii", "replace"))
        if form is None or not form[1].startswith(self._nonce) or form[1] == self._nonce:
            raise LoginRefused(
                "the server's first message does not have the form of RFC 5802, or does not continue the client's nonce"
            )
        iterations = int(form[3])
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_LIMIT:
            raise LoginRefused(
                f"the server requires {iterations} iterations, not {ITERATIONS_MIN} to {ITERATIONS_LIMIT}"
            )
        salted = salted_password(self._digest, self._password, _bytes(form[2]), iterations)
        client_key = hmac.digest(salted, b"Client Key", self._digest)
        without_proof = f"c=biws,r={form[1]}"
        signed = f"{self._bare},{form[0]},{without_proof}".encode()
        signature = hmac.digest(hashlib.new(self._digest, client_key).digest(), signed, self._digest)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._expected = hmac.digest(hmac.digest(salted, b"Server Key", self._digest), signed, self._digest)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Raises LoginRefused unless the server knows the credential."""
        form = SERVER_FINAL.fullmatch(server_final.decode("ascii", "replace"))
        if form is None or not hmac.compare_digest(_bytes(form[1]), self._expected):
            raise LoginRefused("the server does not know the credential of this user")


@lru_cache(SALTED_MAX)
def salted_password(digest: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """Derive the salted password. The result is cached, because this takes milliseconds, and a renewed login has the
    same salt (RFC 5802, 5.1)."""
    return hashlib.pbkdf2_hmac(digest, password, salt, iterations)


def _text(token: bytes) -> str:
    if len(token) > MESSAGE_MAX:
        raise LoginRefused(f"a message has more than {MESSAGE_MAX} bytes")
    try:
        return token.decode("ascii")
    except UnicodeDecodeError:
        raise LoginRefused("a message has characters other than ASCII") from None


def _client_first(token: bytes) -> re.Match[str]:
    form = CLIENT_FIRST.fullmatch(_text(token))
    if form is None:
        raise LoginRefused("the client's first message does not have the form of RFC 5802 without channel binding")
    return form


def _is_by_token(form: re.Match[str]) -> bool:
    """Whether the client logs in with a delegation token. Raises LoginRefused if an extension occurs twice."""
    pairs = [each.split("=", 1) for each in form[5].split(",")[1:]]
    extensions = dict(pairs)
    if len(extensions) != len(pairs):
        raise LoginRefused("an extension occurs twice")
    return extensions.get("tokenauth", "").lower() == "true"


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise LoginRefused("a value is not base64") from None
