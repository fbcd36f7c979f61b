"""ControllerRegistration (70): a starting controller reports its listeners and feature levels to the active controller
(KIP-919)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.commands import RegisterController
from kpybroker.metadata.brokers import BrokerEndpoint
from kpybroker.wire.rpc.controller_registration import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

TIMEOUT_MS = 10_000


async def handle(broker: Broker, _call: Call, request: Request) -> Response:
    """Register the controller."""
    command = RegisterController(
        node_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=request.zk_migration_ready,
        endpoints=tuple(BrokerEndpoint(e.name, e.host, e.port, e.security_protocol) for e in request.listeners),
        features=tuple((f.name, f.min_supported_version, f.max_supported_version) for f in request.features),
    )
    await broker.controller.ask(command, TIMEOUT_MS)
    return Response()
