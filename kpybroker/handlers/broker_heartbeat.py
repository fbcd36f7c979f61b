"""BrokerHeartbeat (63): a registered broker is alive, and may ask to be fenced or to shut down (KIP-631).

v1 names offline directories (KIP-858); cordoned directories (v2) are ignored.
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
    """The state of the broker as the controller sees it. Raises STALE_BROKER_EPOCH."""
    command = BrokerHeartbeat(
        request.broker_id,
        request.broker_epoch,
        want_fence=request.want_fence,
        want_shut_down=request.want_shut_down,
        metadata_offset=request.current_metadata_offset,
        offline_log_dirs=tuple(request.offline_log_dirs),
    )
    told = await broker.controller.ask(command, TIMEOUT_MS)
    if call.connection:
        broker.controller.presence.heard(call.connection, request.broker_id, request.broker_epoch)
    return Response(is_caught_up=told.caught_up, is_fenced=told.fenced, should_shut_down=told.should_shut_down)
