"""DeleteShareGroupOffsets (92): delete the share-partition state of topics in a share group (KIP-932).

The group must not have members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode
from kpybroker.groups.ground.commands import DeleteShareOffsets
from kpybroker.serving.fair_loop import Turns
from kpybroker.serving.shares.places import check_served
from kpybroker.wire.codec.primitives import ZERO_UUID
from kpybroker.wire.rpc.delete_share_group_offsets import DeleteShareGroupOffsetsResponseTopic, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

UNKNOWN = "This server does not host this topic-partition."
NOTHING_THERE = "There is no offset information to delete."


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return a row for each topic once the share coordinator has deleted its state.

    Raises KafkaError if the group is refused.
    """
    check_served(broker)
    runner = broker.coordinators.groups.runner(request.group_id)
    await runner.ask(DeleteShareOffsets(request.group_id, None), broker.config.request_timeout_ms)
    turns = Turns(broker.long_work)
    names = dict.fromkeys(topic.topic_name for topic in request.topics)
    return Response(responses=[await _topic(broker, request.group_id, name) async for name in turns.over(names, str)])


async def _topic(broker: Broker, group_id: str, name: str) -> DeleteShareGroupOffsetsResponseTopic:
    topic = broker.metadata.image.topic(name)
    row = DeleteShareGroupOffsetsResponseTopic(topic_name=name, topic_id=ZERO_UUID)
    if topic is None:
        row.error_code, row.error_message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN
        return row
    runner = broker.coordinators.groups.runner(group_id)
    code = await runner.ask(DeleteShareOffsets(group_id, topic.id), broker.config.request_timeout_ms)
    if code:
        row.error_code = code
        row.error_message = NOTHING_THERE if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else None
    else:
        row.topic_id = topic.id
    return row
