"""Parses an identity provider's public keys, a JSON Web Key Set (RFC 7517), and finds the key for a token.

Only public keys of the types with which Apache Kafka checks signatures are used. Other keys, and keys that cannot be
parsed, are omitted, as in Apache Kafka.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kpybroker.errors import ConfigError

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    PublicKey = RSAKey | ECKey | OKPKey

INSTALL = "pip install 'kpybroker[oauth]'"
KEYS_MAX = 1000
RSA_BITS = range(2048, 16_385)
"""RFC 7518 requires at least 2048 bits. With longer keys, a check takes too much time."""
EXPONENT_BITS_MAX = 64
MEMBERS = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
"""The members of a public key, by type."""
TEXTS = ("kty", "crv", "kid", "alg", "use", "x5t", "x5t#S256")
"""Members that must be strings if they are present."""
CURVES = {"EC": ("P-256", "P-384", "P-521"), "OKP": ("Ed25519", "Ed448")}
KEY_TYPES = {"RS": "RSA", "PS": "RSA", "ES": "EC"}
CURVE_OF = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
EDDSA = "EdDSA"
ALGORITHMS = (*(f"{kind}{bits}" for kind in KEY_TYPES for bits in (256, 384, 512)), EDDSA)
"""The accepted signature algorithms. `none` and algorithms with a shared secret (HMAC) are not among them."""


class SetKey(NamedTuple):
    """A key, with the members that the key set gives for it; None for absent members."""

    kid: str | None
    algorithm: str | None
    thumbprints: Mapping[str, str]
    """The thumbprints of its certificate, by `x5t` and `x5t#S256`."""
    key_type: str
    curve: str | None
    key: PublicKey


class KeySet:
    """The keys that may sign tokens. `left_out` is the number of other keys in the set."""

    def __init__(self, keys: Iterable[SetKey], left_out: int) -> None:
        self.keys = tuple(keys)
        self.left_out = left_out

    def find(self, header: Mapping[str, Any]) -> SetKey | None:
        """The key for a token whose header names one of ALGORITHMS: the first key that fits, or None."""
        algorithm = header["alg"]
        wanted = "OKP" if algorithm == EDDSA else KEY_TYPES[algorithm[:2]]
        found = [each for each in self.keys if each.key_type == wanted and header.get("kid") in (None, each.kid)]
        for name in ("x5t", "x5t#S256"):
            if header.get(name) is not None:
                found = [each for each in found if each.thumbprints.get(name) in (None, header[name])]
        if len(found) > 1:
            found = [each for each in found if each.algorithm in (None, algorithm)]
        if len(found) > 1 and algorithm in CURVE_OF:
            found = [each for each in found if each.curve == CURVE_OF[algorithm]]
        return found[0] if found else None


NO_KEYS = KeySet((), 0)


def check_library() -> None:
    """Raise ConfigError if the library that checks signatures is not installed."""
    try:
        import joserfc  # noqa: F401
    except ImportError:
        raise ConfigError(f"signed tokens need the package joserfc: {INSTALL}") from None


def parse_keys(data: bytes) -> KeySet:
    """Parse a key set. Raises ValueError with the reason."""
    try:
        found = json.loads(data.decode())
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    rows = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError('it is not a JSON object with a list of keys, {"keys": [...]}')
    if len(rows) > KEYS_MAX:
        raise ValueError(f"it has {len(rows)} keys, at most {KEYS_MAX} are allowed")
    keys = [key for key in map(_key, rows) if key is not None]
    return KeySet(keys, len(rows) - len(keys))


def is_signed_by(found: SetKey, algorithm: str, signed: bytes, signature: bytes) -> bool:
    """Whether a signature is valid."""
    from joserfc.errors import JoseError
    from joserfc.jws import JWSRegistry

    name = str(found.curve) if algorithm == EDDSA else algorithm
    try:
        model = JWSRegistry(algorithms=[name]).get_alg(name)
        model.check_key(found.key)
        return model.verify(signed, signature, found.key)
    except (JoseError, ValueError):
        return False


def _key(row: Mapping[str, Any]) -> SetKey | None:
    """The key in a row of the set; None if it may not sign tokens."""
    about = {name: row.get(name) for name in TEXTS}
    if not all(isinstance(value, str | None) for value in about.values()):
        return None
    operations = row.get("key_ops")
    if about["use"] not in (None, "sig") or (operations is not None and not _has_verify(operations)):
        return None
    key_type, curve = about["kty"], about["crv"]
    if key_type not in MEMBERS or (key_type in CURVES and curve not in CURVES[key_type]):
        return None
    key = _public_key(key_type, {name: row.get(name) for name in ("kty", *MEMBERS[key_type])})
    if key is None:
        return None
    thumbprints = {name: text for name in ("x5t", "x5t#S256") if (text := about[name]) is not None}
    return SetKey(about["kid"], about["alg"], thumbprints, key_type, curve, key)


def _has_verify(operations: object) -> bool:
    return isinstance(operations, list) and "verify" in operations


def _public_key(key_type: str, members: Mapping[str, Any]) -> PublicKey | None:
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey

    if not all(isinstance(text, str) and text.isascii() for text in members.values()):
        return None
    try:
        if key_type == "EC":
            return ECKey.import_key({**members})
        if key_type == "OKP":
            return OKPKey.import_key({**members})
        if _bits(members["n"]) not in RSA_BITS or _bits(members["e"]) > EXPONENT_BITS_MAX:
            return None
        return RSAKey.import_key({**members})
    except (JoseError, ValueError):
        return None


def _bits(text: str) -> int:
    """The length of a number in base64url. Raises ValueError."""
    return int.from_bytes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), "big").bit_length()
