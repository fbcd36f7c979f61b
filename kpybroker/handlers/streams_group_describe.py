"""StreamsGroupDescribe (89): topology, epochs, members and tasks of streams groups (KIP-1071)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import KafkaError
from kpybroker.groups.ground.commands import DescribeStreamsGroup
from kpybroker.handlers.streams_group_heartbeat import check_served
from kpybroker.security.authorizer import AclResource
from kpybroker.serving.authorized_operations import operations_of
from kpybroker.serving.fair_loop import Turns
from kpybroker.wire.rpc.streams_group_describe import DescribedGroup, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return a description or an error for each group."""
    turns = Turns(broker.long_work)
    groups = []
    async for group_id in turns.over(request.group_ids, str):
        described = await _describe(broker, group_id)
        turns.add(len(described.members))
        if request.include_authorized_operations and not described.error_code:
            described.authorized_operations = operations_of(broker, call, AclResource.GROUP, group_id)
        groups.append(described)
    return Response(groups=groups)


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every group."""
    return Response(groups=[_refused(each, refusal) for each in request.group_ids])


def _refused(group_id: str, refusal: KafkaError) -> DescribedGroup:
    return DescribedGroup(group_id=group_id, error_code=refusal.code, error_message=refusal.message)


async def _describe(broker: Broker, group_id: str) -> DescribedGroup:
    try:
        check_served(broker)
        runner = broker.coordinators.groups.runner(group_id)
        described: DescribedGroup = await runner.ask(DescribeStreamsGroup(group_id), broker.config.request_timeout_ms)
    except KafkaError as refusal:
        return _refused(group_id, refusal)
    return described
