"""Decides AlterUserScramCredentials: checks new and removed credentials, and creates their records (KIP-554)."""

from __future__ import annotations

from typing import Any

from kpybroker.controller.scram_commands import (
    AlterUserScramCredentials,
    ScramDeletion,
    ScramResult,
    ScramUpsertion,
)
from kpybroker.controller.state import ControllerState
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.scram import record_of
from kpybroker.security.scram import DIGESTS, ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism, credential_of
from kpybroker.wire.stored import metadata as stored

CREDENTIALS_MAX = 10_000
NAME_LENGTH_MAX = 1024
SALT_BYTES_MAX = 1024


def alter_user_scram_credentials(
    state: ControllerState, command: AlterUserScramCredentials
) -> tuple[list[Any], list[ScramResult]]:
    """Decide on each user separately. A user that occurs twice is refused, even with different mechanisms."""
    made: dict[str, Any] = {}
    refused: dict[str, ScramResult] = {}
    new: set[str] = set()
    kept = sum(map(len, state.scram_credentials.values()))
    changes: tuple[ScramDeletion | ScramUpsertion, ...] = (*command.deletions, *command.upsertions)
    for change in changes:
        user = change.user
        if user in refused:
            continue
        try:
            if user in made:
                del made[user]
                new.discard(user)
                raise KafkaError(
                    ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
                )
            if isinstance(change, ScramDeletion):
                made[user] = _deleted(state, change)
                continue
            is_new = change.mechanism not in state.scram_credentials.get(user, {})
            if is_new and kept + len(new) >= CREDENTIALS_MAX:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION, f"A cluster may have at most {CREDENTIALS_MAX} SCRAM credentials."
                )
            made[user] = _upserted(change)
            if is_new:
                new.add(user)
        except KafkaError as refusal:
            refused[user] = ScramResult(user, refusal.code, refusal.message)
    return list(made.values()), [*(ScramResult(user) for user in made), *refused.values()]


def _deleted(state: ControllerState, change: ScramDeletion) -> stored.RemoveUserScramCredentialRecord:
    _mechanism(change)
    if change.mechanism not in state.scram_credentials.get(change.user, {}):
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
    return stored.RemoveUserScramCredentialRecord(name=change.user, mechanism=change.mechanism)


def _upserted(change: ScramUpsertion) -> stored.UserScramCredentialRecord:
    mechanism = _mechanism(change)
    if change.iterations < ITERATIONS_MIN:
        raise _unacceptable("Too few iterations")
    if change.iterations > ITERATIONS_MAX:
        raise _unacceptable("Too many iterations")
    if len(change.user) > NAME_LENGTH_MAX:
        raise _unacceptable(f"A username may have at most {NAME_LENGTH_MAX} characters")
    if len(change.salt) > SALT_BYTES_MAX:
        raise _unacceptable(f"A salt may have at most {SALT_BYTES_MAX} bytes")
    if not change.salted_password:
        raise _unacceptable("The salted password must not be empty")
    credential = credential_of(mechanism, change.salt, change.salted_password, change.iterations)
    return record_of(change.user, mechanism, credential)


def _mechanism(change: ScramDeletion | ScramUpsertion) -> ScramMechanism:
    if not change.user:
        raise _unacceptable("Username must not be empty")
    if change.mechanism not in DIGESTS:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return ScramMechanism(change.mechanism)


def _unacceptable(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, reason)
