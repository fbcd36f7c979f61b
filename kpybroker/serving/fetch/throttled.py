"""The empty response to a Fetch of a throttled client (KIP-219): without records, it costs no quota."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.replication.partition.sessions import INITIAL_EPOCH
from kpybroker.wire.response_templates import Fetched
from kpybroker.wire.rpc.fetch import Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def quiet_answer(broker: Broker, session_epoch: int, response: Response | Fetched, wait_ms: int) -> Response:
    """An empty response in place of `response`; the next one of the session catches up.

    A session that this fetch opened is closed again, since the client does not learn of it. An error stays an error.
    """
    if isinstance(response, Response) and response.error_code:
        return response
    session_id = response.session_id
    if session_epoch <= INITIAL_EPOCH:
        if session_id:
            broker.replication.sessions.close(session_id)
        session_id = 0
    else:
        broker.replication.sessions.forget_what_was_told(session_id)
    return Response(throttle_time_ms=wait_ms, session_id=session_id, responses=[])
