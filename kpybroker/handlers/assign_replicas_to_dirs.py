"""AssignReplicasToDirs (73): a broker reports which of its directories hold which replicas (KIP-858)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.commands import AssignReplicas
from kpybroker.serving.fair_loop import Turns, decided
from kpybroker.wire.rpc.assign_replicas_to_dirs import (
    DirectoryDataReply,
    PartitionDataReply,
    Request,
    Response,
    TopicDataReply,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

TIMEOUT_MS = 10_000


async def handle(broker: Broker, _call: Call, request: Request) -> Response:
    """Return an error code for each assignment, grouped by directory and topic. Raises STALE_BROKER_EPOCH."""
    turns = Turns(broker.long_work)
    asked = [
        (directory.id, topic.topic_id, partition.partition_index)
        async for directory in turns.through(request.directories)
        async for topic in turns.through(directory.topics)
        async for partition in turns.through(topic.partitions)
    ]
    who = request.broker_id, request.broker_epoch
    results = await decided(broker, asked, lambda some: AssignReplicas(*who, some), TIMEOUT_MS)
    directories: dict[bytes, DirectoryDataReply] = {}
    topics: dict[tuple[bytes, bytes], TopicDataReply] = {}
    async for directory, topic_id, index, code in turns.through(results):
        if directory not in directories:
            directories[directory] = DirectoryDataReply(id=directory, topics=[])
        if (directory, topic_id) not in topics:
            topics[directory, topic_id] = TopicDataReply(topic_id=topic_id, partitions=[])
            directories[directory].topics.append(topics[directory, topic_id])
        topics[directory, topic_id].partitions.append(PartitionDataReply(partition_index=index, error_code=code))
    return Response(directories=list(directories.values()))
