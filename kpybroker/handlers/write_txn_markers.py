"""WriteTxnMarkers (27): end transactions in the partitions that this broker leads.

v1 flexible; v2 says which protocol of transactions the marker is of (KIP-1228).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.wire.rpc.write_txn_markers import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """A code for every partition of every marker."""
    return await broker.write_markers(request)
