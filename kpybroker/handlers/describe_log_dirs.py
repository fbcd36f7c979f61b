"""DescribeLogDirs (35): the directories of this broker, and how much each partition takes in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.wire.rpc.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker import Broker


def handle(broker: Broker, _call: Call, request: Request) -> Response:
    wanted = None if request.topics is None else {topic.topic: frozenset(topic.partitions) for topic in request.topics}
    topics: dict[str, DescribeLogDirsTopic] = {}
    for partition in broker.hosting:
        if wanted is not None and partition.index not in wanted.get(partition.topic, ()):
            continue
        if partition.topic not in topics:
            topics[partition.topic] = DescribeLogDirsTopic(name=partition.topic)
        topics[partition.topic].partitions.append(
            DescribeLogDirsPartition(
                partition_index=partition.index,
                partition_size=partition.log.size_bytes,
                offset_lag=max(partition.log.high_watermark - partition.log.end, 0),
            )
        )
    path = broker.config.log_dirs[0]
    return Response(
        results=[
            DescribeLogDirsResult(
                log_dir=path,
                topics=list(topics.values()),
                total_bytes=broker.world.disk.total_bytes(path),
                usable_bytes=broker.world.disk.free_bytes(path),
            )
        ]
    )
