"""OffsetDelete (47): delete a group's committed offsets for topics to which it is not subscribed (KIP-496)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import DeleteOffsets
from kpybroker.serving.fair_loop import Turns
from kpybroker.wire.rpc.offset_delete import (
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.metadata.image import OffsetsOf


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return an error code for each partition. A missing offset is not an error."""
    known: dict[str, set[int]] = {}
    places: dict[str, OffsetsOf | None] = {}
    turns = Turns(broker.long_work)
    async for topic in turns.through(request.topics):
        image = broker.metadata.image.topic(topic.name)
        place = places[topic.name] = None if image is None else broker.metadata.image.offsets_of(image)
        if place is not None:
            stored = (place.stored(each.partition_index) for each in topic.partitions)
            known.setdefault(place.topic, set()).update(index for index in stored if index is not None)
    command = DeleteOffsets(request.group_id, [(topic, sorted(partitions)) for topic, partitions in known.items()])
    try:
        subscribed = await broker.coordinators.groups.runner(request.group_id).ask(
            command, broker.config.offsets_commit_timeout_ms
        )
    except KafkaError as refusal:
        return Response(error_code=refusal.code)

    def code(topic: str, partition: int) -> ErrorCode:
        place = places[topic]
        if place is None or place.stored(partition) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if place.topic in subscribed else ErrorCode.NONE

    return Response(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=each.partition_index, error_code=code(topic.name, each.partition_index)
                    )
                    for each in topic.partitions
                ],
            )
            async for topic in turns.through(request.topics)
        ]
    )
