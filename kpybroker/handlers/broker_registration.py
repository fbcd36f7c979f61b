"""BrokerRegistration (62): a broker registers with the active controller (KIP-631).

v2 contains the broker's directories (KIP-858); v3 contains the broker epoch before the last clean shutdown (KIP-966);
v4 may contain features with a minimum level of 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.commands import RegisterBroker
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.brokers import BrokerEndpoint
from kpybroker.wire.rpc.broker_registration import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

TIMEOUT_MS = 10_000
NO_CONNECTION = 0
"""Takes the place of the connection when a node sends the request to itself."""


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return the broker's epoch.

    Raises INCONSISTENT_CLUSTER_ID, DUPLICATE_BROKER_REGISTRATION, INVALID_REGISTRATION and other errors.
    """
    if request.cluster_id != broker.storage.cluster_id:
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID)
    if request.is_migrating_zk_broker or request.broker_id < 0 or not request.listeners:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    command = RegisterBroker(
        node_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        endpoints=tuple(BrokerEndpoint(e.name, e.host, e.port, e.security_protocol) for e in request.listeners),
        features=tuple((f.name, f.min_supported_version, f.max_supported_version) for f in request.features),
        rack=request.rack,
        log_dirs=tuple(request.log_dirs),
        previous_epoch=request.previous_broker_epoch,
        is_own=call.connection == NO_CONNECTION,
    )
    return Response(broker_epoch=await broker.controller.ask(command, TIMEOUT_MS))
