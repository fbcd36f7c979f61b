"""Runs periodic work on all partitions: retention and checkpoints, each at its own interval."""

from __future__ import annotations

import asyncio
import logging

from kpybroker.config import BrokerConfig
from kpybroker.errors import Damage, KafkaError
from kpybroker.replication.partition.hosting import Hosting
from kpybroker.replication.partition.partition import Partition
from kpybroker.storage.dirs.log_dirs import LogDirectories
from kpybroker.world import World

log = logging.getLogger(__name__)


async def retain_and_checkpoint(world: World, config: BrokerConfig, hosting: Hosting, log_dirs: LogDirectories) -> None:
    """Apply retention, and write the checkpoints of recovery points. Runs until cancelled."""
    retention_s = config.log_retention_check_interval_ms / 1000
    checkpoint_s = config.log_flush_offset_checkpoint_interval_ms / 1000
    loop = asyncio.get_running_loop()
    retain_at = loop.time() + min(config.log_initial_task_delay_ms / 1000, retention_s)
    # after a recovery, checkpoint at once, so that another crash does not cause the same recovery
    checkpoint_at = loop.time() + (checkpoint_s if log_dirs.clean else 0)
    while True:
        await asyncio.sleep(max(min(retain_at, checkpoint_at) - loop.time(), 0.001))
        if loop.time() >= retain_at:
            retain_at = loop.time() + retention_s
            await retain_all(world, hosting, log_dirs)
        if loop.time() >= checkpoint_at:
            checkpoint_at = loop.time() + checkpoint_s
            await log_dirs.checkpoint()


async def retain_all(world: World, hosting: Hosting, log_dirs: LogDirectories) -> None:
    """Apply retention to all partitions. A log that cannot be changed now is left for the next time."""
    for partition in hosting:
        _retain(world, partition, log_dirs)
        await asyncio.sleep(0)


def _retain(world: World, partition: Partition, log_dirs: LogDirectories) -> None:
    try:
        if partition.offline is None:
            partition.log.apply_retention(world.wall_ms())
            log_dirs.collect(partition.log)
    except Damage as damage:
        partition.fail(str(damage))
    except KafkaError as refusal:
        log.warning("retention of %r is postponed to the next interval: %s", partition, refusal)
