"""Mutants that report a log end whose batches are only in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from kpybroker.raft.log.metadata_log import MetadataLog
from kpybroker.replication.follower import fetch_plan, fetcher, follower_log
from kpybroker.replication.follower.follower_log import FetchPosition
from kpybroker.replication.partition.partition import Partition
from kpybroker.sim.cluster.setup import BAD_FILE
from kpybroker.sim.mutants.mutant import Mutant, Patch
from kpybroker.storage.log.log import Log


def _place_of_what_is_queued(partition: Partition) -> FetchPosition:
    return FetchPosition(partition.leader_epoch, partition.log.end, partition.log.epochs.latest)


def _takes_into_memory(take: Callable[..., bool]) -> Callable[..., bool]:
    """Followers leave records from the leader in memory until the next flush."""

    def careless(*given: Any) -> bool:
        with patch.object(Log, "flush", lambda log, *, wait=True: None):
            return take(*given)

    return careless


async def _synced_already(_: MetadataLog) -> None:
    """Reports records as synced without waiting for the sync."""


CLAIMERS = (
    Mutant(
        "a follower fetches from beyond its written records",
        (
            Patch(fetch_plan, "position_of", _place_of_what_is_queued),
            Patch(fetcher, "position_of", _place_of_what_is_queued),
            Patch(follower_log, "position_of", _place_of_what_is_queued),
            Patch(fetcher, "take", _takes_into_memory(follower_log.take)),
        ),
        ("crash", BAD_FILE),
        brokers=3,
    ),
    Mutant(
        "a voter fetches from beyond its synced records",
        (
            Patch(MetadataLog, "synced", _synced_already),
            Patch(MetadataLog, "is_safe", property(lambda log: True)),
        ),
        ("fsync_stall", "crash"),
        brokers=3,
    ),
)
