"""FetchSnapshot (59): a part of a metadata snapshot, from the leader of the quorum (KIP-630)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.wire.rpc.fetch_snapshot import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """At most controller.quorum.fetch.snapshot.max.bytes, from the requested position on."""
    return await broker.quorum.fetch_snapshot(request)
