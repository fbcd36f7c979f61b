"""RemoveRaftVoter (81): make a voter of the metadata quorum an observer (KIP-853)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.wire.rpc.remove_raft_voter import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Remove the voter.

    Raises NOT_LEADER_OR_FOLLOWER, UNSUPPORTED_VERSION, VOTER_NOT_FOUND, INVALID_REQUEST, REQUEST_TIMED_OUT.
    """
    return await broker.quorum.remove_voter(request)
