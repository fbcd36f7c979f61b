"""CreatePartitions (37): grow topics, each by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.commands import CreatePartitions, NewPartitions
from kpybroker.errors import KafkaError
from kpybroker.handlers.everywhere import served_everywhere
from kpybroker.handlers.mutating import mutations
from kpybroker.wire.rpc.create_partitions import (
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    quota = mutations(broker, call, "CreatePartitions")
    command = CreatePartitions(
        tuple(_new_partitions(topic) for topic in request.topics), request.validate_only, quota.take
    )
    results = await broker.controller.ask(command, request.timeout_ms)
    await served_everywhere(broker, request.timeout_ms)
    return Response(
        throttle_time_ms=quota.wait_ms,
        results=[
            CreatePartitionsTopicResult(
                name=result.name or "", error_code=result.error_code, error_message=result.error_message
            )
            for result in results
        ],
    )


def refuse(request: Request, refusal: KafkaError) -> Response:
    return Response(
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=refusal.code, error_message=refusal.message)
            for topic in request.topics
        ]
    )


def _new_partitions(topic: CreatePartitionsTopic) -> NewPartitions:
    assignments = topic.assignments
    return NewPartitions(
        topic.name,
        topic.count,
        None if assignments is None else tuple(tuple(assigned.broker_ids) for assigned in assignments),
    )
