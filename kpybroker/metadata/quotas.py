"""The quotas in the metadata, by entity and quota key (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from kpybroker.metadata.part import Metadata, Part
from kpybroker.wire.stored import metadata as stored

USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = (USER, CLIENT_ID, IP)

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

RATE_OF_CONNECTIONS_MIN = 0.5
"""The smallest connection rate that does not round to 0. With a rate of 0 no client could connect, not even to remove
the quota."""

Entity = tuple[tuple[str, str | None], ...]
"""(type, name) pairs, ordered by type. The name None stands for the default, which applies to entities without a quota
of their own."""
Quotas = Mapping[Entity, Mapping[str, float]]
NO_QUOTAS: Quotas = MappingProxyType({})


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """The canonical form of an entity: records and requests may list its parts in any order."""
    return tuple(sorted(parts, key=lambda part: part[0]))


def entity_of_record(record: stored.ClientQuotaRecord) -> Entity:
    """The entity whose quota a record sets or removes."""
    return entity_of((part.entity_type, part.entity_name) for part in record.entity)


def record_of(entity: Entity, key: str, value: float | None) -> stored.ClientQuotaRecord:
    """The record that sets a quota, or removes it if the value is None."""
    parts = [stored.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
    return stored.ClientQuotaRecord(entity=parts, key=key, value=value or 0.0, remove=value is None)


def _change(metadata: Metadata, record: stored.ClientQuotaRecord) -> None:
    quotas, entity = metadata.changing(QUOTAS), entity_of_record(record)
    values = {key: value for key, value in quotas.get(entity, {}).items() if key != record.key}
    if not record.remove:
        values[record.key] = record.value
    if values:
        quotas[entity] = values
    else:
        quotas.pop(entity, None)


def _records(quotas: Quotas) -> Iterator[Any]:
    return (record_of(entity, key, value) for entity, values in quotas.items() for key, value in values.items())


QUOTAS: Part[Quotas] = Part("quotas", NO_QUOTAS, {stored.ClientQuotaRecord: _change}, _records)


def why_unusable_quota(key: str, value: float) -> str | None:
    """The reason why a value cannot be applied; None if it can. Apache Kafka accepts NaN and tiny connection rates."""
    if not value > 0:
        return f"Quota {key} must be greater than 0"
    if key == CONNECTION_CREATION_RATE and value < RATE_OF_CONNECTIONS_MIN:
        return f"Quota {key} must be at least 1: with a lower value, no client could connect any more"
    return None
