"""AlterPartition (56): a leader proposes new ISRs for its partitions (KIP-497).

v3 contains the broker epoch of each ISR member (KIP-903); for v2 the controller assumes the current epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.controller.commands import AlterPartition, IsrResult, ProposedIsr
from kpybroker.serving.fair_loop import Turns, decided
from kpybroker.wire.rpc.alter_partition import (
    PartitionData,
    PartitionDataReply,
    Request,
    Response,
    TopicDataReply,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

TIMEOUT_MS = 10_000
ANY_EPOCH = -1


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return the new state of each partition, or the error of a refused proposal. Raises STALE_BROKER_EPOCH."""
    turns = Turns(broker.long_work)
    proposals = [
        _proposal(topic.topic_id, partition, call.version)
        async for topic in turns.through(request.topics)
        async for partition in turns.through(topic.partitions)
    ]
    who = request.broker_id, request.broker_epoch
    results = await decided(broker, proposals, lambda some: AlterPartition(*who, some), TIMEOUT_MS)
    told = iter(results)
    return Response(
        topics=[
            TopicDataReply(
                topic_id=topic.topic_id, partitions=[_told(next(told)) async for _ in turns.through(topic.partitions)]
            )
            async for topic in turns.through(request.topics)
        ]
    )


def _proposal(topic_id: bytes, partition: PartitionData, version: int) -> ProposedIsr:
    if version >= 3:  # a version check is needed here: both versions have the ISR, but in different fields
        isr = tuple((member.broker_id, member.broker_epoch) for member in partition.new_isr_with_epochs)
    else:
        isr = tuple((node_id, ANY_EPOCH) for node_id in partition.new_isr)
    return ProposedIsr(
        topic_id,
        partition.partition_index,
        partition.leader_epoch,
        partition.partition_epoch,
        isr,
        partition.leader_recovery_state,
    )


def _told(result: IsrResult) -> PartitionDataReply:
    return PartitionDataReply(
        partition_index=result.partition,
        error_code=result.error_code,
        leader_id=result.leader,
        leader_epoch=result.leader_epoch,
        isr=list(result.isr),
        leader_recovery_state=result.leader_recovery_state,
        partition_epoch=result.partition_epoch,
    )
