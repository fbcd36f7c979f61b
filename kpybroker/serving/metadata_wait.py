"""Waits until all brokers have applied what the controller has committed, so that a client may send its next request to
any of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

PATIENCE_MS = 1000
"""How long to wait for a broker that lags, which may just have failed."""


async def served_everywhere(broker: Broker, ends_s: float) -> None:
    """Wait until every live broker has applied everything committed so far, and this one has opened its logs.

    Called on the active controller. `ends_s`: when to stop waiting, by the loop's clock.
    """
    loop = asyncio.get_running_loop()
    await broker.replication.replicas.until_hosted(ends_s)
    if len(broker.metadata.image.brokers) < 2:
        return

    def others() -> list[int]:
        return [node_id for node_id in broker.metadata.image.live_brokers() if node_id != broker.node_id]

    patience_ms = min(max(int((ends_s - loop.time()) * 1000), 0), PATIENCE_MS)
    await broker.quorum.until_applied(others, broker.quorum.committed, patience_ms)
