"""ShareFetch (78): acquire records of share partitions, and acknowledge earlier ones (KIP-932).

v2 has acquire modes (KIP-1206) and can renew acquisition locks (KIP-1222). The implementation is in `serving/shares`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call, Reply, Result
from kpybroker.errors import KafkaError
from kpybroker.serving.shares.acknowledging import Acknowledging
from kpybroker.serving.shares.fetching import ShareView, begin
from kpybroker.serving.shares.places import check_served
from kpybroker.serving.shares.session import named, session_of_fetch
from kpybroker.shares.sessions import CLOSING
from kpybroker.wire.rpc.share_fetch import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.shares.sessions import ShareSession


def handle(broker: Broker, call: Call, request: Request) -> Result:
    """Return the response if it is complete, otherwise a reply that waits for data.

    Raises KafkaError if the share session is refused.
    """
    check_served(broker)
    session = session_of_fetch(broker, call, request)
    rows = [(place, batches) for place, batches in named(request) if batches]
    if not rows and request.share_session_epoch != CLOSING:
        return begin(ShareView(broker, call, request, session, {}))
    acknowledging = Acknowledging(broker, call, session.key, rows, may_renew=request.is_renew_ack)
    return _acknowledged(broker, call, request, session, acknowledging)


async def _acknowledged(
    broker: Broker, call: Call, request: Request, session: ShareSession, acknowledging: Acknowledging
) -> Response | Reply:
    """Fetch when the acknowledgements have been written. The last request of a share session does not fetch."""
    answers = await acknowledging.written()
    if request.share_session_epoch == CLOSING:
        broker.coordinators.share_leader.close_session(session.key)
        session.forget(list(session.places))
        answered = ShareView(broker, call, request, session, answers).answer(final=True)
        assert isinstance(answered, Response), "nothing is read"
        return answered
    return begin(ShareView(broker, call, request, session, answers))


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse the whole fetch."""
    return Response(error_code=refusal.code, error_message=refusal.message)
