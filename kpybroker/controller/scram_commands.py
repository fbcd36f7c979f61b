"""The controller's commands for SCRAM credentials; plain values, like those in `commands.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kpybroker.errors import ErrorCode


class ScramDeletion(NamedTuple):
    """Remove a user's SCRAM credential for one mechanism. `mechanism` is Kafka's code."""

    user: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    """Set a user's SCRAM credential for one mechanism. `mechanism` is Kafka's code. The repr does not show secrets."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


class AlterUserScramCredentials(NamedTuple):
    """Credentials to remove and to set. Answer: list[ScramResult], one for each user."""

    deletions: tuple[ScramDeletion, ...] = ()
    upsertions: tuple[ScramUpsertion, ...] = ()


class ScramResult(NamedTuple):
    """The result for one user."""

    user: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
