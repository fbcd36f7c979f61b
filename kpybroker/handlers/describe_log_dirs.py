"""DescribeLogDirs (35): the directories of this broker, and how much each partition takes in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode
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
    disk, log_dirs = broker.world.disk, broker.log_dirs
    results = {path: DescribeLogDirsResult(log_dir=path, topics=[]) for path in log_dirs.paths}
    for path, result in results.items():
        try:
            if path in log_dirs.offline:
                result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            else:
                result.total_bytes, result.usable_bytes = disk.total_bytes(path), disk.free_bytes(path)
        except OSError:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    topics: dict[tuple[str, str], DescribeLogDirsTopic] = {}
    for partition in broker.hosting:
        if wanted is not None and partition.index not in wanted.get(partition.topic, ()):
            continue
        directory = log_dirs.of(partition.log)
        if directory is None:
            continue
        key = directory.path, partition.topic
        if key not in topics:
            topics[key] = DescribeLogDirsTopic(name=partition.topic)
            results[directory.path].topics.append(topics[key])
        topics[key].partitions.append(
            DescribeLogDirsPartition(
                partition_index=partition.index,
                partition_size=partition.log.size_bytes,
                offset_lag=max(partition.log.high_watermark - partition.log.end, 0),
            )
        )
    return Response(results=list(results.values()))
