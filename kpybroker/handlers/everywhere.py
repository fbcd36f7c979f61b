"""What a client has been promised is there whichever broker it asks next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kpybroker.broker import Broker

PATIENCE_MS = 1000
"""A broker that lags further behind is not waited for: it may be one that has just died."""


async def served_everywhere(broker: Broker, timeout_ms: int) -> None:
    """Until every live broker has applied what this one, the active controller, has committed by now, and this one
    has opened its logs."""
    await broker.replicas.until_hosted()
    if len(broker.image.brokers) < 2:
        return

    def others() -> list[int]:
        return [node_id for node_id in broker.image.live_brokers() if node_id != broker.node_id]

    await broker.quorum.answering.followed.by(others, broker.quorum.committed, min(timeout_ms, PATIENCE_MS))
