"""UpdateRaftVoter (82): a voter reports its endpoints and supported versions to the leader (KIP-853)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.wire.rpc.update_raft_voter import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Update the voter. Every response contains the current leader."""
    return broker.quorum.update_voter(request)
