"""BeginQuorumEpoch (53): the leader of the quorum tells of itself (KIP-595)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.wire.rpc.begin_quorum_epoch import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker import Broker


def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Follow it, or say who leads."""
    return broker.quorum.answering.epoch_begun(request)
