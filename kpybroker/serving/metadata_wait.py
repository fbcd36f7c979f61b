"""What a client has been promised is there whichever broker it asks next."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kpybroker.broker import Broker

PATIENCE_MS = 1000
"""A broker that lags further behind is not waited for: it may be one that has just died."""


async def served_everywhere(broker: Broker, ends_s: float) -> None:
    """Until every live broker has applied what this one, the active controller, has committed by now, and this one
    has opened its logs; no longer than until `ends_s` by the loop's clock."""
    loop = asyncio.get_running_loop()
    await broker.replicas.until_hosted(ends_s)
    if len(broker.image.brokers) < 2:
        return

    def others() -> list[int]:
        return [node_id for node_id in broker.image.live_brokers() if node_id != broker.node_id]

    patience_ms = min(max(int((ends_s - loop.time()) * 1000), 0), PATIENCE_MS)
    await broker.quorum.answering.followed.by(others, broker.quorum.committed, patience_ms)
