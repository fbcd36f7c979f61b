"""The controller's commands for delegation tokens; plain values, like those in `commands.py`. Principals are text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class CreateDelegationToken(NamedTuple):
    """Create a token. Answer: the DelegationToken. Unless `max_lifetime_ms` is positive, the settings determine the
    maximum lifetime.

    Raises DELEGATION_TOKEN_AUTH_DISABLED, INVALID_PRINCIPAL_TYPE, POLICY_VIOLATION.
    """

    requester: str
    owner: str
    renewers: tuple[str, ...] = ()
    max_lifetime_ms: int = -1


@dataclass(frozen=True, slots=True)
class RenewDelegationToken:
    """Let a token expire `period_ms` from now or, if `period_ms` is not positive, after the period in the settings.
    Answer: the time at which the token expires, in milliseconds since the epoch. Raises DELEGATION_TOKEN_AUTH_DISABLED,
    DELEGATION_TOKEN_NOT_FOUND, DELEGATION_TOKEN_EXPIRED, DELEGATION_TOKEN_OWNER_MISMATCH.
    """

    requester: str
    hmac: bytes = field(repr=False)
    period_ms: int = -1


@dataclass(frozen=True, slots=True)
class ExpireDelegationToken:
    """Let a token expire `period_ms` from now, or remove it if `period_ms` is negative. The answer and the errors are
    as for RenewDelegationToken."""

    requester: str
    hmac: bytes = field(repr=False)
    period_ms: int = -1
