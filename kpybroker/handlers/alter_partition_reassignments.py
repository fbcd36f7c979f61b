"""AlterPartitionReassignments (45): start or cancel reassignments of partitions (KIP-455).

v1 can forbid changes of the replication factor (KIP-860).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.commands import AlterReassignments, Reassignment
from kpybroker.errors import KafkaError
from kpybroker.serving.fair_loop import Turns, decided
from kpybroker.wire.rpc.alter_partition_reassignments import (
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, _call: Call, request: Request) -> Response:
    """Return an error code for each partition. The replicas of a started reassignment are copied later."""
    turns = Turns(broker.long_work)
    wanted = [
        Reassignment(topic.name, each.partition_index, None if each.replicas is None else tuple(each.replicas))
        async for topic in turns.through(request.topics)
        async for each in turns.through(topic.partitions)
    ]
    allowed = request.allow_replication_factor_change
    told = iter(await decided(broker, wanted, lambda some: AlterReassignments(some, allowed), request.timeout_ms))
    return Response(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=result.partition,
                        error_code=result.error_code,
                        error_message=result.error_message,
                    )
                    async for result in turns.through(next(told) for _ in topic.partitions)
                ],
            )
            async for topic in turns.through(request.topics)
        ],
    )


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse the whole request and every partition in it."""
    return Response(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=refusal.code,
        error_message=refusal.message,
        responses=[
            ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=each.partition_index, error_code=refusal.code, error_message=refusal.message
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )
