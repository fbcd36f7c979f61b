"""What the leader of share partitions takes from the settings of the broker and of the group, at each use."""

from __future__ import annotations

from typing import NamedTuple

from kpybroker.config import BrokerConfig
from kpybroker.metadata.group_settings import number_of, text_of
from kpybroker.metadata.image import Image
from kpybroker.shares.partition import Limits


class GroupRules(NamedTuple):
    """The settings of one share group."""

    limits: Limits
    offset_reset: str
    """earliest, latest, or by_duration:<ISO 8601 duration>."""
    is_committed: bool
    """Only records of committed transactions are delivered."""
    may_renew: bool


def rules_of(image: Image, config: BrokerConfig, group_id: str) -> GroupRules:
    """The settings in force for a group."""
    lock_ms = number_of(
        image,
        group_id,
        "share.record.lock.duration.ms",
        config.group_share_record_lock_duration_ms,
        config.group_share_min_record_lock_duration_ms,
        config.group_share_max_record_lock_duration_ms,
    )
    deliveries = number_of(
        image,
        group_id,
        "share.delivery.count.limit",
        config.group_share_delivery_count_limit,
        config.group_share_min_delivery_count_limit,
        config.group_share_max_delivery_count_limit,
    )
    in_flight = number_of(
        image,
        group_id,
        "share.partition.max.record.locks",
        config.group_share_partition_max_record_locks,
        config.group_share_min_partition_max_record_locks,
        config.group_share_max_partition_max_record_locks,
    )
    return GroupRules(
        Limits(lock_ms, deliveries, in_flight),
        text_of(image, group_id, "share.auto.offset.reset", "latest"),
        text_of(image, group_id, "share.isolation.level", "read_uncommitted") == "read_committed",
        text_of(image, group_id, "share.renew.acknowledge.enable", "true").lower() == "true",
    )
