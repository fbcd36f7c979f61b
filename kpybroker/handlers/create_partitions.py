"""CreatePartitions (37): add partitions to topics; each topic succeeds or fails independently."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.commands import CreatePartitions, NewPartitions
from kpybroker.controller.growth import NEW_PARTITIONS_PER_REQUEST_MAX, too_many_partitions
from kpybroker.errors import KafkaError
from kpybroker.serving.fair_loop import SLICE, Turns, at_most_twice, decided
from kpybroker.serving.metadata_wait import served_everywhere
from kpybroker.serving.mutation_quota import mutations
from kpybroker.wire.rpc.create_partitions import (
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    ends_s = asyncio.get_running_loop().time() + request.timeout_ms / 1000
    turns = Turns(broker.long_work)
    quota = mutations(broker, call)
    asked: Sequence[CreatePartitionsTopic] = request.topics
    if len(asked) > SLICE:
        asked = await at_most_twice(turns, asked, lambda topic: topic.name)
        _check_number(broker, asked)
    results = await decided(
        broker,
        asked,
        lambda some: CreatePartitions(
            tuple(_new_partitions(topic) for topic in some), request.validate_only, quota.take
        ),
        request.timeout_ms,
    )
    await served_everywhere(broker, ends_s)
    return Response(
        throttle_time_ms=quota.wait_ms,
        results=[
            CreatePartitionsTopicResult(
                name=result.name or "", error_code=result.error_code, error_message=result.error_message
            )
            async for result in turns.through(results)
        ],
    )


def _check_number(broker: Broker, asked: Sequence[CreatePartitionsTopic]) -> None:
    """Check the number of new partitions over all topics; the controller receives them in slices.
    Raises POLICY_VIOLATION."""
    there = broker.metadata.image.topics
    wanted = sum(max(each.count - len(there[each.name].partitions), 0) for each in asked if each.name in there)
    if wanted > NEW_PARTITIONS_PER_REQUEST_MAX:
        raise too_many_partitions()


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
