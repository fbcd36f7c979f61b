"""AlterShareGroupOffsets (91): set start offsets of a share group that has no members, and create it if necessary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode
from kpybroker.groups.ground.commands import AlterShareOffsets
from kpybroker.serving.fair_loop import Turns
from kpybroker.serving.shares.places import check_served
from kpybroker.wire.codec.primitives import ZERO_UUID
from kpybroker.wire.rpc.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


UNKNOWN = "This server does not host this topic-partition."


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return a row for each partition once its new state is durable. Raises KafkaError if the group cannot be altered,
    for example NON_EMPTY_GROUP."""
    check_served(broker)
    turns = Turns(broker.long_work)
    return Response(
        responses=[await _topic(broker, request.group_id, topic) async for topic in turns.through(request.topics)]
    )


async def _topic(
    broker: Broker, group_id: str, asked: AlterShareGroupOffsetsRequestTopic
) -> AlterShareGroupOffsetsResponseTopic:
    topic = broker.metadata.image.topic(asked.topic_name)
    count = 0 if topic is None else len(topic.partitions)
    starts = {row.partition_index: row.start_offset for row in asked.partitions if 0 <= row.partition_index < count}
    code = ErrorCode.NONE
    if topic is not None and starts:
        runner = broker.coordinators.groups.runner(group_id)
        command = AlterShareOffsets(group_id, topic.id, starts)
        code = await runner.ask(command, broker.config.request_timeout_ms)
    return AlterShareGroupOffsetsResponseTopic(
        topic_name=asked.topic_name,
        topic_id=ZERO_UUID if topic is None else topic.id,
        partitions=[
            AlterShareGroupOffsetsResponsePartition(
                partition_index=row.partition_index,
                error_code=code if row.partition_index in starts else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                error_message=None if row.partition_index in starts else UNKNOWN,
            )
            for row in asked.partitions
        ],
    )
