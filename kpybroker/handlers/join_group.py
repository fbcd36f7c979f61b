"""JoinGroup (11): join a group, or its next generation.

v1 has a separate rebalance timeout; v4 can return MEMBER_ID_REQUIRED (KIP-394); v5 has static members (KIP-345); v6 is
flexible; v7 returns the protocol type; v8 contains a reason (KIP-800), which is ignored; v9 can return skip_assignment
(KIP-814).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kpybroker.call import Call, Reply
from kpybroker.errors import KafkaError
from kpybroker.groups.ground.commands import Join
from kpybroker.groups.ground.parked_reply import ParkedReply
from kpybroker.wire.rpc.join_group import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

MEMBER_ID_FIRST_SINCE = 4
NULL_PROTOCOL_SINCE = 7
SKIP_ASSIGNMENT_SINCE = 9


def handle(broker: Broker, call: Call, request: Request) -> Response | Reply:
    """Respond when the generation is complete, which takes at most the longest rebalance timeout in the group."""
    command = Join(
        request,
        client_id=call.client_id or "",
        client_host=f"/{call.host}",
        knows_member_id_first=call.version >= MEMBER_ID_FIRST_SINCE,
        may_skip_assignment=call.version >= SKIP_ASSIGNMENT_SINCE,
    )
    respond = partial(_respond, call.version, request.member_id)
    try:
        parked = ParkedReply(broker.coordinators.groups.runner(request.group_id), respond)
        answered: Response | Reply = parked.ask(command, broker.config.offsets_commit_timeout_ms)
    except KafkaError as refusal:
        return respond(refusal)
    return answered


def _respond(version: int, member_id: str, answer: Response | KafkaError) -> Response:
    if isinstance(answer, KafkaError):
        answer = Response(error_code=answer.code, member_id=member_id, protocol_name=None)
    if answer.protocol_name is None and version < NULL_PROTOCOL_SINCE:
        answer.protocol_name = ""
    return answer
