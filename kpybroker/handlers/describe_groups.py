"""DescribeGroups (15): describe the state, protocol and members of groups.

v3 returns authorized operations; v4 returns static members; v5 is flexible. For an unknown group, v6 returns
GROUP_ID_NOT_FOUND with a message (KIP-1043), and earlier versions return the state Dead without an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.classic.group import GroupState
from kpybroker.groups.ground.commands import DescribeGroup
from kpybroker.security.authorizer import AclResource
from kpybroker.serving.authorized_operations import NOT_ASKED, operations_of
from kpybroker.serving.fair_loop import Turns
from kpybroker.wire.rpc.describe_groups import DescribedGroup, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

GROUP_ID_NOT_FOUND_SINCE = 6


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return a description or an error for each group."""
    turns = Turns(broker.long_work)
    groups = []
    async for group_id in turns.over(request.groups, str):
        described = await _describe(broker, call, group_id)
        turns.add(len(described.members))
        described.authorized_operations = NOT_ASKED
        if request.include_authorized_operations and not described.error_code:
            described.authorized_operations = operations_of(broker, call, AclResource.GROUP, group_id)
        groups.append(described)
    return Response(groups=groups)


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every group."""
    return Response(groups=[DescribedGroup(group_id=each, error_code=refusal.code) for each in request.groups])


async def _describe(broker: Broker, call: Call, group_id: str) -> DescribedGroup:
    described: DescribedGroup
    try:
        runner = broker.coordinators.groups.runner(group_id, may_be_empty=True)
        described = await runner.ask(DescribeGroup(group_id), broker.config.request_timeout_ms)
    except KafkaError as refusal:
        unknown = refusal.code is ErrorCode.GROUP_ID_NOT_FOUND
        described = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value if unknown else "")
        if not unknown or call.version >= GROUP_ID_NOT_FOUND_SINCE:
            described.error_code = refusal.code
            described.error_message = refusal.message if call.version >= GROUP_ID_NOT_FOUND_SINCE else None
    return described
