"""Decides on the creation, renewal and expiry of delegation tokens, and removes expired tokens (KIP-48, KIP-900).

The checks have the same order as in Apache Kafka's controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from kpybroker.config.token_settings import TokenSettings
from kpybroker.controller.ids import random_uuid
from kpybroker.controller.state import ControllerState
from kpybroker.controller.token_commands import CreateDelegationToken, ExpireDelegationToken, RenewDelegationToken
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.machine.contract import Moment
from kpybroker.metadata.tokens import record_of
from kpybroker.security.delegation_tokens import DelegationToken, parts_of, token_hmac
from kpybroker.security.principal import USER
from kpybroker.storage.dirs.formatting import encode_id
from kpybroker.wire.stored import metadata as stored

TOKENS_MAX = 10_000
"""The most tokens that a cluster may have. A metadata log written by Apache Kafka may contain more."""
TEXT_MAX = 8192
"""The most characters in all principals of one token together."""
SWEPT_AT_ONCE_MAX = 1000
"""The most expired tokens that one Tick removes, as in Apache Kafka."""
LONG_MAX = (1 << 63) - 1


class Tokens:
    """The controller's decisions on delegation tokens, in one term."""

    def __init__(self, settings: TokenSettings) -> None:
        self._settings = settings
        self._by_hmac: dict[bytes, str] = {}
        """The ids of the tokens by HMAC, as they were when this mapping was last built. Some may have been removed
        since then."""
        self._swept_ms: int | None = None
        """The time at which expired tokens were last removed, on the steady clock; None before the first Tick."""

    def create(
        self, state: ControllerState, random: Random, command: CreateDelegationToken, now_ms: int
    ) -> tuple[list[Any], DelegationToken]:
        """Decide on a CreateDelegationToken. Raises the errors that the command lists."""
        principals = (command.owner, *command.renewers)
        if any(parts_of(each)[0] != USER for each in principals):
            raise KafkaError(ErrorCode.INVALID_PRINCIPAL_TYPE)
        self._key()
        if len(state.delegation_tokens) >= TOKENS_MAX or sum(map(len, principals)) > TEXT_MAX:
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        settings = self._settings
        max_ms = _later(now_ms, _at_most(settings.max_lifetime_ms, command.max_lifetime_ms))
        token = DelegationToken(
            encode_id(random_uuid(random)),
            command.owner,
            command.requester,
            command.renewers,
            now_ms,
            max_ms,
            min(max_ms, _later(now_ms, settings.expiry_time_ms)),
        )
        return [record_of(token)], token

    def renew(self, state: ControllerState, command: RenewDelegationToken, now_ms: int) -> tuple[list[Any], int]:
        """Change the time at which a token expires. Raises the errors that the command lists."""
        token = self._found(state, command.hmac)
        if token.has_expired(now_ms):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
        _check_may_renew(token, command.requester)
        return _expiring(token, now_ms, _at_most(self._settings.expiry_time_ms, command.period_ms))

    def expire(self, state: ControllerState, command: ExpireDelegationToken, now_ms: int) -> tuple[list[Any], int]:
        """Change the time at which a token expires, or remove the token, even if it has expired already."""
        token = self._found(state, command.hmac)
        _check_may_renew(token, command.requester)
        if command.period_ms < 0:
            return [stored.RemoveDelegationTokenRecord(token_id=token.token_id)], now_ms
        if token.has_expired(now_ms):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
        return _expiring(token, now_ms, command.period_ms)

    # ---- expired tokens

    def next_sweep_ms(self, state: ControllerState) -> int | None:
        """The next time at which expired tokens are removed, on the steady clock; None if there are no tokens."""
        if self._swept_ms is None or self._settings.secret_key is None or not state.delegation_tokens:
            return None
        return self._swept_ms + self._settings.expiry_check_interval_ms

    def sweep(self, state: ControllerState, now: Moment) -> list[Any]:
        """Remove expired tokens, if this is due. If not all can be removed at once, the next sweep is due
        immediately."""
        if self._swept_ms is None:
            self._swept_ms = now.steady_ms
        due_ms = self.next_sweep_ms(state)
        if due_ms is None or now.steady_ms < due_ms:
            return []
        expired = [each.token_id for each in state.delegation_tokens.values() if each.has_expired(now.wall_ms)]
        if len(expired) <= SWEPT_AT_ONCE_MAX:
            self._swept_ms = now.steady_ms
        return [stored.RemoveDelegationTokenRecord(token_id=each) for each in expired[:SWEPT_AT_ONCE_MAX]]

    # ---- secrets

    def _key(self) -> str:
        if self._settings.secret_key is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
        return self._settings.secret_key

    def _found(self, state: ControllerState, hmac: bytes) -> DelegationToken:
        """The token with this HMAC. The first search in a term computes the HMACs of all tokens."""
        key, tokens = self._key(), state.delegation_tokens
        if hmac not in self._by_hmac:
            self._learn(key, tokens)
        token = tokens.get(self._by_hmac.get(hmac, ""))
        if token is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        return token

    def _learn(self, key: str, tokens: Mapping[str, DelegationToken]) -> None:
        known = {token_id: hmac for hmac, token_id in self._by_hmac.items() if token_id in tokens}
        self._by_hmac = {known.get(token_id) or token_hmac(key, token_id): token_id for token_id in tokens}


def _check_may_renew(token: DelegationToken, principal: str) -> None:
    if not token.may_renew(principal):
        raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def _expiring(token: DelegationToken, now_ms: int, period_ms: int) -> tuple[list[Any], int]:
    expires_ms = min(token.max_ms, _later(now_ms, period_ms))
    return [record_of(token._replace(expires_ms=expires_ms))], expires_ms


def _at_most(most_ms: int, asked_ms: int) -> int:
    return min(most_ms, asked_ms) if asked_ms > 0 else most_ms


def _later(now_ms: int, period_ms: int) -> int:
    return min(now_ms + period_ms, LONG_MAX)
