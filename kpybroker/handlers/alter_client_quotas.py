"""AlterClientQuotas (49): set and remove quotas of users, client ids and IPs (KIP-546).

Each entity succeeds or fails independently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.commands import AlterClientQuotas, QuotaChange
from kpybroker.errors import KafkaError
from kpybroker.metadata.quotas import Entity
from kpybroker.serving.fair_loop import decided
from kpybroker.wire.rpc.alter_client_quotas import EntityData, EntryData, EntryDataReply, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, _call: Call, request: Request) -> Response:
    results = await decided(
        broker,
        request.entries,
        lambda some: AlterClientQuotas(tuple(_change(entry) for entry in some), request.validate_only),
        broker.config.request_timeout_ms,
    )
    return Response(
        entries=[
            EntryDataReply(
                error_code=result.error_code, error_message=result.error_message, entity=_entity_data(result.entity)
            )
            for result in results
        ]
    )


def _change(entry: EntryData) -> QuotaChange:
    return QuotaChange(_entity(entry), tuple((op.key, None if op.remove else op.value) for op in entry.ops))


def refuse(request: Request, refusal: KafkaError) -> Response:
    return Response(
        entries=[
            EntryDataReply(error_code=refusal.code, error_message=refusal.message, entity=_entity_data(_entity(entry)))
            for entry in request.entries
        ]
    )


def _entity(entry: EntryData) -> Entity:
    return tuple((part.entity_type, part.entity_name) for part in entry.entity)


def _entity_data(entity: Entity) -> list[EntityData]:
    return [EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
