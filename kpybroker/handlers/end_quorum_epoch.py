"""EndQuorumEpoch (54): the leader of the quorum resigns (KIP-595)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.wire.rpc.end_quorum_epoch import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Become a candidate, after a delay that depends on this node's position among the preferred successors."""
    return broker.quorum.end_epoch(request)
