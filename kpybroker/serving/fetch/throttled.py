"""The empty response to a Fetch of a throttled client (KIP-219). Without records, it does not count for the quota."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.replication.partition.sessions import INITIAL_EPOCH
from kpybroker.wire.response_templates import Fetched
from kpybroker.wire.rpc.fetch import Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def quiet_answer(broker: Broker, session_epoch: int, response: Response | Fetched, wait_ms: int) -> Response:
    """An empty response in place of `response`. The next response of the session contains all partitions with new data.

    If this Fetch opened a session, the session is closed, because the client does not receive its id. An error response
    is returned unchanged.
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
