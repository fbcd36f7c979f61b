"""Principals, which identify the sender of a request and the subject of an ACL."""

from __future__ import annotations

from dataclasses import dataclass, field

from kpybroker.wire.stored.prefixed import build_stored, parse_stored
from kpybroker.wire.stored.principal import PrincipalValue

USER = "User"


@dataclass(slots=True, frozen=True)
class Principal:
    """A type, which is `User` for all clients, and a name. Its string form is `User:alice`."""

    type: str
    name: str
    token_authenticated: bool = field(default=False, compare=False)
    """Whether the login used a delegation token. The principal equals the token's owner, but may not create tokens."""

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""The principal of a client that did not authenticate."""


def encode_principal(principal: Principal) -> bytes:
    """Encode a principal as brokers forward it to the controller (DefaultKafkaPrincipalBuilder)."""
    return build_stored(
        PrincipalValue(type=principal.type, name=principal.name, token_authenticated=principal.token_authenticated)
    )


def decode_principal(data: bytes | memoryview) -> Principal:
    """Decode the principal in an Envelope. Raises Damage."""
    value = parse_stored(PrincipalValue, data)
    return Principal(value.type, value.name, value.token_authenticated)
