"""Waits until all live brokers have applied the committed metadata, so that a client can send its next request to any
of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

PATIENCE_MS = 1000
"""How long to wait for a broker that has not applied the metadata. It may have failed a moment ago."""


async def served_everywhere(broker: Broker, ends_s: float) -> None:
    """Wait until this broker has opened its logs and every live broker has applied the metadata committed so far.

    Called on the active controller. The wait ends at `ends_s` of the event loop's clock at the latest.
    """
    loop = asyncio.get_running_loop()
    await broker.replication.replicas.until_hosted(ends_s)
    if len(broker.metadata.image.brokers) < 2:
        return

    def others() -> list[int]:
        return [node_id for node_id in broker.metadata.image.live_brokers() if node_id != broker.node_id]

    patience_ms = min(max(int((ends_s - loop.time()) * 1000), 0), PATIENCE_MS)
    await broker.quorum.until_applied(others, broker.quorum.committed, patience_ms)
