"""What a Fetch is answered whose client has to wait (KIP-219): nothing, so that it has nothing to pay for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.replication.partition.sessions import INITIAL_EPOCH
from kpybroker.wire.response_templates import Fetched
from kpybroker.wire.rpc.fetch import Response

if TYPE_CHECKING:
    from kpybroker.broker import Broker


def quiet_answer(broker: Broker, session_epoch: int, response: Response | Fetched, wait_ms: int) -> Response:
    """An empty answer in the place of this one; the session's next one says what this one would have said.

    A session that has only begun is let go: to the client it has never been there. A refusal stays what it is.
    """
    if isinstance(response, Response) and response.error_code:
        return response
    session_id = response.session_id
    if session_epoch <= INITIAL_EPOCH:
        if session_id:
            broker.sessions.close(session_id)
        session_id = 0
    else:
        broker.sessions.forget_what_was_told(session_id)
    return Response(throttle_time_ms=wait_ms, session_id=session_id, responses=[])
