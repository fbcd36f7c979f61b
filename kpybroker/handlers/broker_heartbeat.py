"""BrokerHeartbeat (63): a registered broker reports that it is alive, or that it wants to be fenced or to shut down.

See KIP-631. v1 contains the offline directories (KIP-858). v2 contains the cordoned directories (KIP-1066).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.commands import BrokerHeartbeat
from kpybroker.wire.rpc.broker_heartbeat import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

TIMEOUT_MS = 5000


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return the state of the broker in the controller. Raises STALE_BROKER_EPOCH."""
    command = BrokerHeartbeat(
        request.broker_id,
        request.broker_epoch,
        want_fence=request.want_fence,
        want_shut_down=request.want_shut_down,
        metadata_offset=request.current_metadata_offset,
        offline_log_dirs=tuple(request.offline_log_dirs),
        cordoned_log_dirs=None if request.cordoned_log_dirs is None else tuple(request.cordoned_log_dirs),
    )
    told = await broker.controller.ask(command, TIMEOUT_MS)
    if call.connection:
        broker.controller.presence.heard(call.connection, request.broker_id, request.broker_epoch)
    return Response(is_caught_up=told.caught_up, is_fenced=told.fenced, should_shut_down=told.should_shut_down)
