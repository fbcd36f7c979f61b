"""The rules for replicas, which depend on the broker's settings and the cluster's metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from kpybroker.config import BrokerConfig
from kpybroker.metadata.image import Image
from kpybroker.metadata.retirements import Retirement
from kpybroker.metadata.views import TopicView
from kpybroker.metadata.whereabouts import epoch_of, has_partition, may_be_in_sync

LAG_MAX_MS = 30_000


def _loop_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


@dataclass(frozen=True, slots=True)
class ReplicaRules:
    """The rules for the replicas that node `node_id` hosts. The defaults are those of a cluster without limits."""

    node_id: int
    lag_max_ms: int = LAG_MAX_MS
    """replica.lag.time.max.ms: the time for which a follower may lag without leaving the ISR."""
    is_rack_aware: bool = False
    """Whether consumers may fetch from followers (KIP-392). If so, a new high watermark is sent to followers at
    once."""
    now_ms: Callable[[], int] = _loop_ms
    """The loop's clock."""
    may_join: Callable[[int, int], bool] = lambda node_id, broker_epoch: True
    """Returns whether a node that fetched with this broker epoch may be in sync (KIP-841)."""
    epoch_of: Callable[[int], int] = lambda node_id: -1
    """Returns the epoch of a broker's registration, or -1 if it is unknown."""
    exists: Callable[[str, int], bool] = lambda topic, index: False
    """Returns whether the cluster has a partition, on this broker or another one."""
    read_only: Callable[[str], TopicView | Retirement | None] = lambda topic: None
    """Returns the view or the retired partitions of this name, if there are any."""

    @classmethod
    def of(cls, config: BrokerConfig, image: Callable[[], Image]) -> ReplicaRules:
        """The rules for a broker's settings and its current Image."""
        return cls(
            config.node_id,
            lag_max_ms=config.replica_lag_time_max_ms,
            is_rack_aware=config.is_rack_aware,
            may_join=lambda node_id, broker_epoch: may_be_in_sync(image(), node_id, broker_epoch),
            epoch_of=lambda node_id: epoch_of(image(), node_id),
            exists=lambda topic, index: has_partition(image(), topic, index),
            read_only=lambda topic: image().read_only(topic),
        )
