"""DescribeClientQuotas (48): list the quotas of the entities that match a filter (KIP-546).

With `strict`, an entity must have exactly the types that the filter names. An empty filter matches every entity, or
none with `strict`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.quotas import CLIENT_ID, ENTITY_TYPES, IP, USER, Entity
from kpybroker.wire.rpc.describe_client_quotas import (
    ComponentData,
    EntityData,
    EntryData,
    Request,
    Response,
    ValueData,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

EXACT, DEFAULT, ANY = 0, 1, 2
HOW = {EXACT: "EXACT", DEFAULT: "DEFAULT", ANY: "SPECIFIED"}


def handle(broker: Broker, _call: Call, request: Request) -> Response:
    wanted = _filter(request)
    return Response(
        error_message=None,
        entries=[
            EntryData(
                entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                values=[ValueData(key=key, value=value) for key, value in values.items()],
            )
            for entity, values in broker.metadata.image.quotas.items()
            if _passes(entity, wanted, strict=request.strict)
        ],
    )


def refuse(_request: Request, refusal: KafkaError) -> Response:
    return Response(error_code=refusal.code, error_message=refusal.message, entries=None)


def _filter(request: Request) -> Mapping[str, ComponentData]:
    """The components of the filter, by entity type. Raises INVALID_REQUEST, UNSUPPORTED_VERSION."""
    wanted: dict[str, ComponentData] = {}
    for component in request.components:
        kind, how = component.entity_type, component.match_type
        if not kind:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in wanted:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter."
            )
        if kind not in ENTITY_TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if how not in HOW:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown match type {how}")
        if (how == EXACT) != (component.match is not None):
            reason = "set match string to null" if how == EXACT else "also specified a match string"
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Request specified MATCH_TYPE_{HOW[how]}, but {reason}.")
        wanted[kind] = component
    if IP in wanted and (USER in wanted or CLIENT_ID in wanted):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A filter of ip cannot be combined with one of user or client-id.")
    return wanted


def _passes(entity: Entity, wanted: Mapping[str, ComponentData], *, strict: bool) -> bool:
    named = dict(entity)
    if not wanted.keys() <= named.keys() or (strict and len(wanted) != len(named)):
        return False
    return all(
        component.match_type == ANY or named[kind] == (component.match if component.match_type == EXACT else None)
        for kind, component in wanted.items()
    )
