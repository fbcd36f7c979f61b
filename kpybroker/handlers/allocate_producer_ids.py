"""AllocateProducerIds (67): allocate a block of producer ids to a broker (KIP-730)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.commands import AllocateProducerIds
from kpybroker.wire.rpc.allocate_producer_ids import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

TIMEOUT_MS = 10_000


async def handle(broker: Broker, _call: Call, request: Request) -> Response:
    """Return a block of ids that no other broker has. Raises STALE_BROKER_EPOCH."""
    block = await broker.controller.ask(AllocateProducerIds(request.broker_id, request.broker_epoch), TIMEOUT_MS)
    return Response(producer_id_start=block.first, producer_id_len=block.count)
