"""The settings for leaders of share partitions, from the broker and the group. They are read at each use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kpybroker.config.component import setting
from kpybroker.metadata.group_settings import number_of, text_of
from kpybroker.metadata.image import SHARE_FEATURE, Image
from kpybroker.shares.partition import Limits


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """The broker's settings for leaders of share partitions: defaults for groups, and limits for values of groups."""

    share_delivery_count_limit: int = setting("group.share.delivery.count.limit")
    share_min_delivery_count_limit: int = setting("group.share.min.delivery.count.limit")
    share_max_delivery_count_limit: int = setting("group.share.max.delivery.count.limit")
    share_partition_max_record_locks: int = setting("group.share.partition.max.record.locks")
    share_min_partition_max_record_locks: int = setting("group.share.min.partition.max.record.locks")
    share_max_partition_max_record_locks: int = setting("group.share.max.partition.max.record.locks")
    share_record_lock_duration_ms: int = setting("group.share.record.lock.duration.ms")
    share_min_record_lock_duration_ms: int = setting("group.share.min.record.lock.duration.ms")
    share_max_record_lock_duration_ms: int = setting("group.share.max.record.lock.duration.ms")


LEVEL_OF_LETTERS = 2
"""The level of share.version from which on groups may have dead letters (KIP-1191)."""


class GroupRules(NamedTuple):
    """The settings of one share group."""

    limits: Limits
    share_auto_offset_reset: str
    """earliest, latest, or by_duration:<ISO 8601 duration>."""
    share_isolation_level: str
    share_renew_acknowledge_enable: bool
    errors_deadletterqueue_topic_name: str = ""
    """Empty if the group has no dead letter topic."""
    errors_deadletterqueue_copy_record_enable: bool = False

    @property
    def is_committed(self) -> bool:
        """Whether records of transactions are delivered only once the transactions are committed."""
        return self.share_isolation_level == "read_committed"


GROUPS_REMEMBERED = 1000


class RememberedRules:
    """The settings of groups. They are read from the Image again after a change of any settings or features."""

    def __init__(self, image: Callable[[], Image], settings: LeaderSettings) -> None:
        self._image = image
        self._settings = settings
        self._read_from: tuple[object, object] = (None, None)
        self._rules: dict[str, GroupRules] = {}

    def __call__(self, group_id: str) -> GroupRules:
        image = self._image()
        if self._read_from[0] is not image.configs or self._read_from[1] is not image.features:
            self._read_from = image.configs, image.features
            self._rules.clear()
        rules = self._rules.get(group_id)
        if rules is None:
            if len(self._rules) >= GROUPS_REMEMBERED:
                self._rules.clear()
            rules = self._rules[group_id] = rules_of(image, self._settings, group_id)
        return rules


def rules_of(image: Image, settings: LeaderSettings, group_id: str) -> GroupRules:
    """The effective settings of a group."""
    lock_ms = number_of(
        image,
        group_id,
        "share.record.lock.duration.ms",
        settings.share_record_lock_duration_ms,
        settings.share_min_record_lock_duration_ms,
        settings.share_max_record_lock_duration_ms,
    )
    deliveries = number_of(
        image,
        group_id,
        "share.delivery.count.limit",
        settings.share_delivery_count_limit,
        settings.share_min_delivery_count_limit,
        settings.share_max_delivery_count_limit,
    )
    in_flight = number_of(
        image,
        group_id,
        "share.partition.max.record.locks",
        settings.share_partition_max_record_locks,
        settings.share_min_partition_max_record_locks,
        settings.share_max_partition_max_record_locks,
    )
    has_letters = image.features.get(SHARE_FEATURE, 0) >= LEVEL_OF_LETTERS
    letters = text_of(image, group_id, "errors.deadletterqueue.topic.name", "").strip() if has_letters else ""
    return GroupRules(
        Limits(lock_ms, deliveries, in_flight, has_letters=bool(letters)),
        text_of(image, group_id, "share.auto.offset.reset", "latest"),
        text_of(image, group_id, "share.isolation.level", "read_uncommitted"),
        text_of(image, group_id, "share.renew.acknowledge.enable", "true").lower() == "true",
        letters,
        text_of(image, group_id, "errors.deadletterqueue.copy.record.enable", "false").lower() == "true",
    )
