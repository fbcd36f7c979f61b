"""SyncGroup (14): the leader gives assignments, everybody gets its own.

v3 static members (KIP-345); v4 flexible; v5 the protocol, checked and answered (KIP-559).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.commands import Sync
from kpybroker.wire.rpc.sync_group import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker import Broker

PROTOCOL_REQUIRED_SINCE = 5


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Answered when the leader has spoken and its assignment has committed, or the generation has ended without."""
    if call.version >= PROTOCOL_REQUIRED_SINCE and (not request.protocol_type or not request.protocol_name):
        return Response(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    response: Response
    try:
        response = await broker.groups.runner(request.group_id).ask(
            Sync(request), broker.config.offsets_commit_timeout_ms
        )
    except KafkaError as refusal:
        return Response(error_code=refusal.code)
    return response
