"""ShareAcknowledge (79): acknowledge acquired records without fetching (KIP-932).

v2 can renew acquisition locks (KIP-1222).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.serving.shares.acknowledging import Acknowledging
from kpybroker.serving.shares.places import Leaders, check_served
from kpybroker.serving.shares.session import named, session_of_acknowledgement
from kpybroker.shares.sessions import CLOSING
from kpybroker.wire.rpc.share_acknowledge import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    Request,
    Response,
    ShareAcknowledgeTopicResponse,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Respond when the acknowledgements have been written. Raises KafkaError if the share session is refused."""
    check_served(broker)
    session = session_of_acknowledgement(broker, request)
    rows = [(place, batches) for place, batches in named(request) if batches]
    acknowledging = Acknowledging(broker, call, session.key, rows, may_renew=request.is_renew_ack)
    answers = await acknowledging.written()
    if request.share_session_epoch == CLOSING:
        broker.coordinators.share_leader.close_session(session.key)
    leaders = Leaders(broker, call)
    topics: dict[bytes, ShareAcknowledgeTopicResponse] = {}
    for place, refusal in answers.items():
        row = PartitionData(partition_index=place[1])
        if refusal is not None:
            row.error_code, row.error_message = refusal.code, refusal.message
        leaders.hint(row, LeaderIdAndEpoch, place)
        topic = topics.setdefault(place[0], ShareAcknowledgeTopicResponse(topic_id=place[0], partitions=[]))
        topic.partitions.append(row)
    return Response(
        acquisition_lock_timeout_ms=broker.coordinators.share_leader.rules(session.key.group_id).limits.lock_ms,
        responses=list(topics.values()),
        node_endpoints=leaders.endpoints(NodeEndpoint),
    )
