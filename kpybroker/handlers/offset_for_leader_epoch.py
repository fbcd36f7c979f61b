"""OffsetForLeaderEpoch (23): return the end offset of a leader epoch (KIP-320).

v3 has a replica id; v4 is flexible. For a future epoch, the returned epoch and offset are -1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import KafkaError
from kpybroker.serving.fair_loop import Turns
from kpybroker.wire.rpc.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return the end of the epoch in each partition, or an error."""
    turns = Turns(broker.long_work)
    return Response(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    _answer(broker, topic.topic, ask, request.replica_id) async for ask in turns.over(topic.partitions)
                ],
            )
            async for topic in turns.over(request.topics)
        ]
    )


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every partition."""
    return Response(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    EpochEndOffset(partition=ask.partition, error_code=refusal.code) for ask in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _answer(broker: Broker, topic: str, ask: OffsetForLeaderPartition, replica_id: int) -> EpochEndOffset:
    try:
        partition = broker.replication.hosting.leads(*broker.metadata.kept_in(topic, ask.partition))
        partition.check_epoch(ask.current_leader_epoch)
    except KafkaError as refusal:
        return EpochEndOffset(partition=ask.partition, error_code=refusal.code)
    if ask.leader_epoch == partition.leader_epoch:
        end = partition.log.high_watermark if replica_id < 0 else partition.committable_end
        return EpochEndOffset(partition=ask.partition, leader_epoch=ask.leader_epoch, end_offset=end)
    epoch, end = partition.log.end_of_epoch(ask.leader_epoch)
    return EpochEndOffset(partition=ask.partition, leader_epoch=epoch, end_offset=end)
