"""Advances the clock of a broker for a test, so that sessions, transactions, locks, offsets and records expire.

The steps are small functions because a test with several brokers advances all of them step by step.
"""

from __future__ import annotations

import asyncio
import contextlib

from kpybroker.broker.broker import Broker
from kpybroker.replication.node.chores import retain_all

SETTLE_S = 5.0
"""The longest wait for the records of one step to commit. A cluster without a majority does not delay a test longer."""
LOOK_EVERY_S = 0.002


async def advance(broker: Broker, by_ms: int) -> None:
    """Advance the clock, and wait until the decisions that this caused are committed, with the ends of transactions."""
    broker.world.expiry.advance(by_ms)
    coordinators = broker.coordinators
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SETTLE_S):
            for coordinator in coordinators.created():
                await coordinator.led.committed()
            while coordinators.transactions.is_ending:
                await asyncio.sleep(LOOK_EVERY_S)


async def compact(broker: Broker, topic: str) -> None:
    """Compact the logs of a topic, with their active segments, however few dirty bytes they have.

    Raises ValueError if the topic is not compacted.
    """
    storage = broker.storage
    logs = [log for (name, _), log in storage.log_dirs.logs.items() if name == topic]
    if logs and not any(log.settings.compacted for log in logs):
        raise ValueError(f"{topic} is not compacted: set cleanup.policy=compact")
    await storage.cleaner.clean_now(logs)


async def retain_and_clean(broker: Broker) -> None:
    """Apply retention to all partitions, and clean the logs that need it."""
    storage = broker.storage
    await retain_all(broker.world, broker.replication.hosting, storage.log_dirs)
    await storage.cleaner.clean_all()
