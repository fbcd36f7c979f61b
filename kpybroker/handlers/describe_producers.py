"""DescribeProducers (61): describe the active producers of partitions (KIP-664). v0 is flexible."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import KafkaError
from kpybroker.serving.fair_loop import Turns
from kpybroker.wire.rpc.describe_producers import PartitionResponse, ProducerState, Request, Response, TopicResponse

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return the producers of each partition, or an error."""
    turns = Turns(broker.long_work)
    topics = []
    async for topic in turns.over(request.topics):
        partitions = []
        async for name, index in turns.over(zip(repeat(topic.name), topic.partition_indexes, strict=False), tuple):
            partitions.append(_answer(broker, name, index))
            turns.add(len(partitions[-1].active_producers))
        topics.append(TopicResponse(name=topic.name, partitions=partitions))
    return Response(topics=topics)


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every partition."""
    return Response(
        topics=[
            TopicResponse(name=topic.name, partitions=[_refused(index, refusal) for index in topic.partition_indexes])
            for topic in request.topics
        ]
    )


def _refused(index: int, refusal: KafkaError) -> PartitionResponse:
    return PartitionResponse(
        partition_index=index, error_code=refusal.code, error_message=refusal.message, active_producers=[]
    )


def _answer(broker: Broker, topic: str, index: int) -> PartitionResponse:
    try:
        partition = broker.replication.hosting.leads(topic, index)
    except KafkaError as refusal:
        return _refused(index, refusal)
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=state.producer_id,
                producer_epoch=state.producer_epoch,
                last_sequence=state.last_sequence,
                last_timestamp=state.last_timestamp,
                coordinator_epoch=state.coordinator_epoch,
                current_txn_start_offset=state.current_txn_first_offset,
            )
            for state in partition.log.producers
        ],
    )
