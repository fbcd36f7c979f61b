"""Vote (52): a voter of the quorum responds to a candidate (KIP-595).

v1 has directory ids (KIP-853); v2 has the pre-vote (KIP-996).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.wire.rpc.vote import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return the vote, after writing it to disk."""
    return broker.quorum.answer_vote(request)
