"""Heartbeat (12): a member reports that it is alive, and the response tells it whether to rejoin.

v3 has static members (KIP-345); v4 is flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import KafkaError
from kpybroker.groups.ground.commands import Heartbeat
from kpybroker.wire.rpc.heartbeat import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return the error code without waiting for a rebalance."""
    command = Heartbeat(request.group_id, request.member_id, request.group_instance_id, request.generation_id)
    try:
        code = await broker.coordinators.groups.runner(request.group_id).ask(command, broker.config.request_timeout_ms)
    except KafkaError as refusal:
        code = refusal.code
    return Response(error_code=code)
