"""DescribeLogDirs (35): describe the log directories of this broker, and the size of each partition in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode
from kpybroker.serving.fair_loop import Turns
from kpybroker.storage.log.log import Log
from kpybroker.wire.rpc.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, _call: Call, request: Request) -> Response:
    turns = Turns(broker.long_work)
    wanted: dict[str, frozenset[int]] | None = None
    if request.topics is not None:
        wanted = {topic.topic: frozenset(topic.partitions) async for topic in turns.through(request.topics)}
    disk, log_dirs = broker.world.disk, broker.storage.log_dirs
    cordoned = log_dirs.cordoned
    results = {
        path: DescribeLogDirsResult(log_dir=path, topics=[], is_cordoned=path in cordoned) for path in log_dirs.paths
    }
    for path, result in results.items():
        try:
            if path in log_dirs.offline:
                result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            else:
                result.total_bytes, result.usable_bytes = disk.total_bytes(path), disk.free_bytes(path)
        except OSError:
            result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    topics: dict[tuple[str, str], DescribeLogDirsTopic] = {}

    def tell(path: str, topic: str, row: DescribeLogDirsPartition) -> None:
        if wanted is not None and row.partition_index not in wanted.get(topic, ()):
            return
        if (path, topic) not in topics:
            topics[path, topic] = DescribeLogDirsTopic(name=topic, partitions=[])
            results[path].topics.append(topics[path, topic])
        topics[path, topic].partitions.append(row)

    async for partition in turns.through(list(broker.replication.hosting)):
        directory = log_dirs.of(partition.log)
        if directory is not None:
            lag = max(partition.log.high_watermark - partition.log.end, 0)
            tell(directory.path, partition.topic, _row(partition.index, partition.log, lag))
    for move in broker.replication.replicas.moves:
        of, lag = move.partition, move.partition.log.end - move.future.end
        tell(move.target.path, of.topic, _row(of.index, move.future, lag, is_future=True))
    return Response(results=list(results.values()))


def _row(index: int, of: Log, lag: int, *, is_future: bool = False) -> DescribeLogDirsPartition:
    return DescribeLogDirsPartition(
        partition_index=index, partition_size=of.size_bytes, offset_lag=lag, is_future_key=is_future
    )
