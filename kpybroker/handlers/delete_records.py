"""DeleteRecords (21): raise the log start offset of partitions (KIP-107).

v2 is flexible. An offset of -1 means the high watermark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.serving.fair_loop import Turns
from kpybroker.wire.rpc.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsTopicResult,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

TO_HIGH_WATERMARK = -1


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return the new log start offset or an error for each partition."""
    turns = Turns(broker.long_work)
    topics = [
        DeleteRecordsTopicResult(
            name=topic.name,
            partitions=[await _delete(broker, topic.name, ask) async for ask in turns.through(topic.partitions)],
        )
        async for topic in turns.through(request.topics)
    ]
    return Response(topics=topics)


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every partition."""
    return Response(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    DeleteRecordsPartitionResult(
                        partition_index=ask.partition_index, low_watermark=-1, error_code=refusal.code
                    )
                    for ask in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _delete(broker: Broker, topic: str, ask: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
    try:
        partition = broker.replication.hosting.leads(*broker.metadata.image.stored_as(topic, ask.partition_index))
        storage = partition.log
        if partition.is_internal:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Cannot delete records of internal topic {topic}.")
        offset = storage.high_watermark if ask.offset == TO_HIGH_WATERMARK else ask.offset
        if "delete" not in storage.settings.cleanup_policy:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "cleanup.policy does not contain delete")
        if not 0 <= offset <= storage.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if offset > storage.start:
            storage.advance_start(offset)
            await broker.storage.log_dirs.start_written(storage)
    except Damage as damage:
        partition.fail(str(damage))
        code = ErrorCode.KAFKA_STORAGE_ERROR
        return DeleteRecordsPartitionResult(partition_index=ask.partition_index, low_watermark=-1, error_code=code)
    except KafkaError as refusal:
        return DeleteRecordsPartitionResult(
            partition_index=ask.partition_index, low_watermark=-1, error_code=refusal.code
        )
    return DeleteRecordsPartitionResult(partition_index=ask.partition_index, low_watermark=storage.start)
