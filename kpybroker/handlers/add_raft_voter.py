"""AddRaftVoter (80): make an observer of the metadata quorum a voter (KIP-853).

In v1, the sender can choose not to wait for the commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.wire.rpc.add_raft_voter import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Add the voter.

    Raises NOT_LEADER_OR_FOLLOWER, UNSUPPORTED_VERSION, DUPLICATE_VOTER, INVALID_REQUEST, REQUEST_TIMED_OUT.
    """
    return await broker.quorum.add_voter(request)
