"""JoinGroup (11): come into a group, or into its next generation.

v1 a rebalance timeout of its own; v4 MEMBER_ID_REQUIRED (KIP-394); v5 static members (KIP-345); v6 flexible; v7 the
protocol type in the answer; v8 a reason (KIP-800), which is not kept; v9 skip_assignment (KIP-814).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import KafkaError
from kpybroker.groups.commands import Join
from kpybroker.wire.rpc.join_group import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker import Broker

MEMBER_ID_FIRST_SINCE = 4
NULL_PROTOCOL_SINCE = 7
SKIP_ASSIGNMENT_SINCE = 9


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Answered when the generation is complete, which takes up to the longest rebalance timeout in the group."""
    command = Join(
        request,
        client_id=call.client_id or "",
        client_host=f"/{call.host}",
        knows_member_id_first=call.version >= MEMBER_ID_FIRST_SINCE,
        may_skip_assignment=call.version >= SKIP_ASSIGNMENT_SINCE,
    )
    response: Response
    try:
        response = await broker.groups.runner(request.group_id).ask(command, broker.config.offsets_commit_timeout_ms)
    except KafkaError as refusal:
        response = Response(error_code=refusal.code, member_id=request.member_id, protocol_name=None)
    if response.protocol_name is None and call.version < NULL_PROTOCOL_SINCE:
        response.protocol_name = ""
    return response
