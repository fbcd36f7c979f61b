"""UnregisterBroker (64): remove the registration of a broker that will not return (KIP-631)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.commands import UnregisterBroker
from kpybroker.wire.rpc.unregister_broker import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

TIMEOUT_MS = 30_000


async def handle(broker: Broker, _call: Call, request: Request) -> Response:
    """Have the controller remove the registration. Raises BROKER_ID_NOT_REGISTERED."""
    await broker.controller.ask(UnregisterBroker(request.broker_id), TIMEOUT_MS)
    return Response(error_message=None)
