"""FetchSnapshot (59): return a part of a metadata snapshot to a replica of the metadata log (KIP-630)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.wire.rpc.fetch_snapshot import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return at most controller.quorum.fetch.snapshot.max.bytes, from the requested position on."""
    return await broker.quorum.fetch_snapshot(request)
