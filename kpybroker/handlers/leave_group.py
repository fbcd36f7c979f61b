"""LeaveGroup (13): members leave a group or are removed from it.

v3 has several members, each with its own error code (KIP-345); v4 is flexible; v5 contains a reason (KIP-800), which is
ignored. Below v3, the error of the only member is the error of the response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import KafkaError
from kpybroker.groups.ground.commands import Leave
from kpybroker.serving.fair_loop import slices
from kpybroker.wire.rpc.leave_group import MemberIdentity, MemberResponse, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

MANY_SINCE = 3


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Remove the members and respond without waiting for the rebalance."""
    many = call.version >= MANY_SINCE
    members = request.members if many else [MemberIdentity(member_id=request.member_id)]
    try:
        codes: list[int] = []
        for some in slices(members):
            if codes:
                await broker.long_work.turn()
            command = Leave(request.group_id, list(some))
            codes += await broker.coordinators.groups.runner(request.group_id).ask(
                command, broker.config.request_timeout_ms
            )
    except KafkaError as refusal:
        return Response(error_code=refusal.code)
    if not many:
        return Response(error_code=codes[0])
    return Response(
        members=[
            MemberResponse(member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=code)
            for member, code in zip(members, codes, strict=True)
        ]
    )
