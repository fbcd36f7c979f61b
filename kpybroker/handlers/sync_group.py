"""SyncGroup (14): the leader of the group sends all assignments, and every member receives its own.

v3 has static members (KIP-345); v4 is flexible; v5 contains the protocol, which is checked and returned (KIP-559).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call, Reply
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import Sync
from kpybroker.groups.ground.parked_reply import ParkedReply
from kpybroker.wire.rpc.sync_group import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

PROTOCOL_REQUIRED_SINCE = 5


def handle(broker: Broker, call: Call, request: Request) -> Response | Reply:
    """Respond when the leader's assignments have been committed, or the generation ends without assignments."""
    if call.version >= PROTOCOL_REQUIRED_SINCE and (not request.protocol_type or not request.protocol_name):
        return Response(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    try:
        parked = ParkedReply(broker.coordinators.groups.runner(request.group_id), _respond)
        answered: Response | Reply = parked.ask(Sync(request), broker.config.offsets_commit_timeout_ms)
    except KafkaError as refusal:
        return _respond(refusal)
    return answered


def _respond(answer: Response | KafkaError) -> Response:
    return Response(error_code=answer.code) if isinstance(answer, KafkaError) else answer
