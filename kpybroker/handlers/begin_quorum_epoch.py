"""BeginQuorumEpoch (53): the new leader of the quorum announces itself (KIP-595)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.wire.rpc.begin_quorum_epoch import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Follow the sender, or respond with the current leader."""
    return broker.quorum.begin_epoch(request)
