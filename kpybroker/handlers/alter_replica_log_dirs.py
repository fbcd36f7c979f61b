"""AlterReplicaLogDirs (34): move replicas to other log directories of this broker (KIP-113)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.serving.fair_loop import Turns
from kpybroker.wire.rpc.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirTopicResult,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, _call: Call, request: Request) -> Response:
    """Start the moves. DescribeLogDirs shows their progress."""
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    turns = Turns(broker.long_work)
    async for directory in turns.through(request.dirs):
        async for topic in turns.through(directory.topics):
            told = topics.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=[]))
            async for index in turns.through(topic.partitions):
                code = _altered(broker, topic.name, index, directory.path)
                told.partitions.append(AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code))
    return Response(results=list(topics.values()))


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every partition."""
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            told = topics.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=[]))
            told.partitions += [
                AlterReplicaLogDirPartitionResult(partition_index=index, error_code=refusal.code)
                for index in topic.partitions
            ]
    return Response(results=list(topics.values()))


def _altered(broker: Broker, topic: str, index: int, path: str) -> ErrorCode:
    try:
        broker.replication.replicas.moves.alter(topic, index, path)
    except KafkaError as refusal:
        return refusal.code
    return ErrorCode.NONE
