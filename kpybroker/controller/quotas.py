"""Decides AlterClientQuotas: checks entities and quotas (KIP-546, KIP-612), and creates the records of the changes."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from kpybroker.controller.commands import AlterClientQuotas, QuotaChange, QuotaResult
from kpybroker.controller.state import ControllerState
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    ENTITY_TYPES,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Entity,
    entity_of,
    record_of,
    why_unusable_quota,
)

ENTITIES_MAX = 10_000
NAME_LENGTH_MAX = 1024
LONG_MAX, INT_MAX = float((1 << 63) - 1), float((1 << 31) - 1)
FRACTION_MAX = 1e-6
"""The largest difference of a whole-number quota from a whole number. It is above zero because values are doubles."""

KEYS_OF_CLIENTS: Mapping[str, float | None] = {
    PRODUCER_BYTE_RATE: LONG_MAX,
    CONSUMER_BYTE_RATE: LONG_MAX,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
"""The largest value of each key whose values are whole numbers; None if any positive number is valid."""
KEYS_OF_ADDRESSES: Mapping[str, float | None] = {CONNECTION_CREATION_RATE: INT_MAX}
WHOLE_TYPES = {LONG_MAX: "a LONG", INT_MAX: "an INT"}


def alter_client_quotas(state: ControllerState, command: AlterClientQuotas) -> tuple[list[Any], list[QuotaResult]]:
    """Decide on each entity separately. If an entity occurs twice, the first change is made and the second is
    refused."""
    results: dict[Entity, QuotaResult] = {}
    records: list[Any] = []
    new = 0
    for change in command.changes:
        entity = entity_of(dict(change.entity).items())
        try:
            if entity in results:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {_shown(entity)}")
            made = _change(state, entity, change)
            new += bool(made) and entity not in state.quotas
            if len(state.quotas) + new > ENTITIES_MAX:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION, f"A cluster may have quotas for at most {ENTITIES_MAX} entities."
                )
            records += made
            results[entity] = QuotaResult(entity)
        except KafkaError as refusal:
            results[entity] = QuotaResult(entity, refusal.code, refusal.message)
    return [] if command.validate_only else records, list(results.values())


def _change(state: ControllerState, entity: Entity, change: QuotaChange) -> list[Any]:
    keys = _keys_of(entity)
    wanted = dict(change.ops)
    if len(wanted) < len(change.ops):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {_shown(entity)}: a key is named twice")
    now = state.quotas.get(entity, {})
    for key, value in wanted.items():
        if value is not None:
            _check(keys, key, value)
    return [record_of(entity, key, value) for key, value in wanted.items() if now.get(key) != value]


def _keys_of(entity: Entity) -> Mapping[str, float | None]:
    if not entity:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity")
    named = dict(entity)
    for kind, name in entity:
        if kind not in ENTITY_TYPES:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Empty {kind} not supported")
        if name is not None and len(name) > NAME_LENGTH_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"A {kind} may have at most {NAME_LENGTH_MAX} characters.")
    if IP not in named:
        return KEYS_OF_CLIENTS
    if USER in named or CLIENT_ID in named:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Invalid quota entity combination, an ip cannot be combined with a user or a client-id",
        )
    address = named[IP]
    if address is not None:
        _check_address(address)
    return KEYS_OF_ADDRESSES


def _check_address(address: str) -> None:
    """Check an IP address. Kafka also accepts a host name and resolves it once, but kpybroker does not resolve names
    while it decides on a command."""
    try:
        ip_address(address)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{address} is not a valid IP address.") from None


def _check(keys: Mapping[str, float | None], key: str, value: float) -> None:
    if key not in keys:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {key}")
    most = keys[key]
    reason = why_unusable_quota(key, value)
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, reason)
    if most is None:
        return
    if value > most:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Proposed value for {key} is too large for {WHOLE_TYPES[most]}.")
    if value % 1 > FRACTION_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{key} cannot be a fractional value.")


def _shown(entity: Entity) -> str:
    return ", ".join(f"{kind}={name if name is not None else '<default>'}" for kind, name in entity)
