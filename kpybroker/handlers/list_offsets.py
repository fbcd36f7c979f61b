"""ListOffsets (2): look up offsets by timestamp, and the first and last offsets of partitions.

v1 returns one offset for each partition; v2 has the isolation level; v4 has leader epochs (KIP-320); v6 is flexible; v7
can look up the maximum timestamp (KIP-734), v8 the earliest local offset and v9 the latest tiered offset (KIP-405); v10
has a timeout; v11 can look up the earliest offset pending upload (KIP-1023).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.serving.fair_loop import Turns
from kpybroker.wire.rpc.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsTopicResponse,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.replication.partition.partition import Partition

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
READ_COMMITTED = 1


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return an offset or an error for each partition."""
    turns = Turns(broker.long_work)
    return Response(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    await _answer(broker, call, request, topic.name, ask) async for ask in turns.over(topic.partitions)
                ],
            )
            async for topic in turns.over(request.topics)
        ]
    )


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every partition."""
    return Response(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=ask.partition_index, error_code=refusal.code)
                    for ask in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _answer(
    broker: Broker, call: Call, request: Request, topic: str, ask: ListOffsetsPartition
) -> ListOffsetsPartitionResponse:
    try:
        partition = broker.replication.hosting.leads(*broker.metadata.kept_in(topic, ask.partition_index))
        partition.check_epoch(ask.current_leader_epoch)
        timestamp, offset, epoch = await _look_up(broker, partition, call, request, ask.timestamp)
    except KafkaError as refusal:
        return ListOffsetsPartitionResponse(partition_index=ask.partition_index, error_code=refusal.code)
    except Damage:
        code = ErrorCode.KAFKA_STORAGE_ERROR
        return ListOffsetsPartitionResponse(partition_index=ask.partition_index, error_code=code)
    return ListOffsetsPartitionResponse(
        partition_index=ask.partition_index, timestamp=timestamp, offset=offset, leader_epoch=epoch
    )


async def _look_up(
    broker: Broker, partition: Partition, call: Call, request: Request, timestamp: int
) -> tuple[int, int, int]:
    """The timestamp, offset and leader epoch of the matching record. All are -1 if no record matches."""
    storage = partition.log
    if timestamp < 0 and call.version < _SINCE.get(timestamp, 0):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if request.replica_id >= 0 and timestamp == LATEST:  # the request of a follower whose offset is out of range
        return -1, partition.committable_end, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return -1, storage.start, storage.epoch_at(storage.start)
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1, -1
    if storage.high_watermark < partition.epoch_start:
        # an earlier leader may have returned a higher offset (KIP-207)
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE if call.version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE)
    committed = request.isolation_level == READ_COMMITTED
    if timestamp == LATEST:
        return -1, storage.last_stable if committed else storage.high_watermark, partition.leader_epoch
    end = storage.last_stable if committed else storage.high_watermark
    begin = partial(storage.looking_up, None if timestamp == MAX_TIMESTAMP else timestamp)
    found = await broker.storage.log_dirs.sliced_work.run(begin)
    if found is None:
        return -1, -1, -1
    offset, found_timestamp, epoch = found
    if offset >= end:  # not committed yet, so consumers cannot see it
        return -1, -1, -1
    return found_timestamp, offset, epoch
