"""DescribeTopicPartitions (75): describe topics in pages, with their eligible leader replicas (KIP-966).

v0 is flexible. Topics are sorted by name. The page starts at `cursor`, and the next page starts at `next_cursor`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from heapq import merge
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.names import check_topic_name
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.serving.authorization import allows, is_shown
from kpybroker.serving.authorized_operations import operations_of
from kpybroker.serving.fair_loop import Turns
from kpybroker.topics import is_internal
from kpybroker.wire.rpc.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.metadata.image import PartitionImage

SORTED_A_TURN = 5000
"""How many names are sorted in one turn of the event loop."""


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return at most `response_partition_limit` partitions, and never more than max.request.partition.size.limit."""
    limit = min(request.response_partition_limit, broker.config.max_request_partition_size_limit)
    if limit <= 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "response_partition_limit must be positive")
    cursor = request.cursor
    if cursor is not None:
        if cursor.partition_index < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the cursor's partition index is negative")
        if request.topics and all(topic.name != cursor.topic_name for topic in request.topics):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the cursor is at a topic that was not requested")
    asked = [topic.name for topic in request.topics] if request.topics else list(broker.metadata.image.readable)
    response = Response(topics=[])
    hidden = []
    async for name in _sorted(broker, asked, "" if cursor is None else cursor.topic_name):
        judge = allows if request.topics else is_shown
        if not judge(broker, call, Operation.DESCRIBE, AclResource.TOPIC, name):
            hidden.append(name)
            continue
        if response.next_cursor is not None:
            continue  # the remaining names are only checked: every page contains all unauthorized topics
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        if limit > 0:
            topic = _topic(broker, name, first, limit)
            topic.topic_authorized_operations = operations_of(broker, call, AclResource.TOPIC, name)
            response.topics.append(topic)
            limit -= len(topic.partitions)
            first += len(topic.partitions)
            image = broker.metadata.image.topic(name)
            if image is None or first >= len(image.partitions):
                continue
        response.next_cursor = Cursor(topic_name=name, partition_index=first)
        if not request.topics:
            break
    if request.topics:
        response.topics += map(_hidden, hidden)
    return response


async def _sorted(broker: Broker, names: list[str], begin: str) -> AsyncIterator[str]:
    """The names from `begin` on, sorted and without duplicates. They are sorted in parts, because a long sort would
    block all other requests."""
    turns = Turns(broker.long_work)
    parts = []
    for at in range(0, len(names), SORTED_A_TURN):
        if at:
            await turns.turn()
        parts.append(sorted({name for name in names[at : at + SORTED_A_TURN] if name >= begin}))
    before = None
    async for name in turns.through(merge(*parts)):
        if name != before:
            yield name
        before = name


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every topic, because the response has no top-level error code."""
    return Response(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=refusal.code, name=topic.name, partitions=[])
            for topic in request.topics
        ]
    )


def _hidden(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        name=name,
        partitions=[],
    )


def _topic(broker: Broker, name: str, first: int, limit: int) -> DescribeTopicPartitionsResponseTopic:
    image = broker.metadata.image.topic(name)
    if image is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            check_topic_name(name)
        except KafkaError as refusal:
            code = refusal.code
        return DescribeTopicPartitionsResponseTopic(
            error_code=code,
            name=name,
            is_internal=is_internal(name),
            partitions=[],
        )
    live = broker.metadata.image.live_brokers()
    return DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=image.id,
        is_internal=is_internal(name),
        partitions=[
            _partition(index, partition, live)
            for index, partition in enumerate(image.partitions[first : first + limit], start=first)
        ],
    )


def _partition(index: int, image: PartitionImage, live: frozenset[int]) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.NONE if image.leader in live else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=image.leader if image.leader in live else -1,
        leader_epoch=image.leader_epoch,
        replica_nodes=list(image.replicas),
        isr_nodes=list(image.isr),
        eligible_leader_replicas=list(image.eligible_leader_replicas),
        last_known_elr=list(image.last_known_elr),
        offline_replicas=[node_id for node_id in image.replicas if node_id not in live],
    )
