"""DeleteGroups (42): delete groups that have no members, and their offsets (KIP-229). v2 is flexible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import DeleteGroup
from kpybroker.serving.fair_loop import Turns
from kpybroker.wire.rpc.delete_groups import DeletableGroupResult, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return an error code for each group. A repeated group id has only one row."""
    results = []
    async for group_id in Turns(broker.long_work).over(dict.fromkeys(request.groups_names)):
        code = ErrorCode.NONE
        try:
            runner = broker.coordinators.groups.runner(group_id, may_be_empty=True)
            while await runner.ask(DeleteGroup(group_id), broker.config.offsets_commit_timeout_ms):
                pass  # the offsets of a large group are deleted in steps
        except KafkaError as refusal:
            code = refusal.code
        results.append(DeletableGroupResult(group_id=group_id, error_code=code))
    return Response(results=results)


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every group."""
    names = dict.fromkeys(request.groups_names)
    return Response(results=[DeletableGroupResult(group_id=each, error_code=refusal.code) for each in names])
