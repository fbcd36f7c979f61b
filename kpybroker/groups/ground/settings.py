"""The broker settings that groups use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kpybroker.config import BrokerConfig, LogSettings
from kpybroker.config.component import read_settings, setting
from kpybroker.errors import ConfigError
from kpybroker.wire.records.batch import HEADER_BYTES

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""A member that has never completed a join is removed after this time, because it cannot send heartbeats yet, and its
client may have ended. Kafka also uses five minutes, without a setting."""
ASSIGNOR_CLASSES = {
    "uniform": "org.apache.kafka.coordinator.group.assignor.UniformAssignor",
    "range": "org.apache.kafka.coordinator.group.assignor.RangeAssignor",
}
"""The assignors of consumer groups (KIP-848), and the equivalent classes in Kafka."""
MS_A_MINUTE = 60_000


def _assignors(named: tuple[str, ...]) -> tuple[str, ...]:
    """The assignors by their short names. Raises ConfigError."""
    by_class = {of_kafka: name for name, of_kafka in ASSIGNOR_CLASSES.items()}
    known = tuple(by_class.get(name, name) for name in named)
    for name in known:
        if name not in ASSIGNOR_CLASSES:
            there = ", ".join(ASSIGNOR_CLASSES)
            raise ConfigError(f"group.consumer.assignors: {name!r} is not known; there are {there}")
    if not known:
        raise ConfigError("group.consumer.assignors: name at least one of " + ", ".join(ASSIGNOR_CLASSES))
    return known


def _policy_has(direction: str) -> Callable[[str], bool]:
    return lambda policy: policy.upper() in (direction, "BIDIRECTIONAL")


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Limits and times of groups. Sizes are in bytes, and times in milliseconds unless the name says otherwise."""

    group_initial_rebalance_delay_ms: int = setting("group.initial.rebalance.delay.ms")
    group_min_session_timeout_ms: int = setting("group.min.session.timeout.ms")
    group_max_session_timeout_ms: int = setting("group.max.session.timeout.ms")
    group_max_size: int = setting("group.max.size")
    offset_metadata_max_bytes: int = setting("offset.metadata.max.bytes")
    offsets_retention_ms: int = setting("offsets.retention.minutes", lambda minutes: minutes * MS_A_MINUTE)
    offsets_retention_check_interval_ms: int = setting("offsets.retention.check.interval.ms")
    max_batch_bytes: int = LogSettings().max_message_bytes - HEADER_BYTES
    """The most bytes of one step's records: a batch of `__consumer_offsets` without its header."""
    max_pending_members: int = 10_000
    """The most member ids of one group that are assigned but not used yet. Each expires after its session timeout."""
    max_groups: int = 1_000_000
    """The most groups in one partition of `__consumer_offsets`."""
    first_join_pause_ms: int = 2
    """How long the first generation of a new group waits for more members after each new one, if the initial rebalance
    delay is 0. Without this pause, the first of several members that start at the same time would be alone in a
    generation, and the others would join only after its next heartbeat, which clients send after three seconds by
    default."""
    first_join_limit_ms: int = 100
    """The longest total wait, including the wait for members that were assigned an id but have not joined with it."""

    consumer_assignors: tuple[str, ...] = setting("group.consumer.assignors", _assignors)
    """The assignors that members may choose; the first one is the default."""
    consumer_session_timeout_ms: int = setting("group.consumer.session.timeout.ms")
    consumer_min_session_timeout_ms: int = setting("group.consumer.min.session.timeout.ms")
    consumer_max_session_timeout_ms: int = setting("group.consumer.max.session.timeout.ms")
    consumer_heartbeat_interval_ms: int = setting("group.consumer.heartbeat.interval.ms")
    consumer_min_heartbeat_interval_ms: int = setting("group.consumer.min.heartbeat.interval.ms")
    consumer_max_heartbeat_interval_ms: int = setting("group.consumer.max.heartbeat.interval.ms")
    consumer_assignment_interval_ms: int = setting("group.consumer.assignment.interval.ms")
    consumer_min_assignment_interval_ms: int = setting("group.consumer.min.assignment.interval.ms")
    consumer_max_assignment_interval_ms: int = setting("group.consumer.max.assignment.interval.ms")
    consumer_max_size: int = setting("group.consumer.max.size")
    consumer_regex_refresh_interval_ms: int = setting("group.consumer.regex.refresh.interval.ms")
    may_upgrade: bool = setting("group.consumer.migration.policy", _policy_has("UPGRADE"))
    """A classic group becomes a consumer group when a member with the consumer protocol joins."""
    may_downgrade: bool = setting("group.consumer.migration.policy", _policy_has("DOWNGRADE"))
    """A consumer group becomes a classic group when its last member with the consumer protocol leaves and other members
    stay.
    """

    share_session_timeout_ms: int = setting("group.share.session.timeout.ms")
    share_min_session_timeout_ms: int = setting("group.share.min.session.timeout.ms")
    share_max_session_timeout_ms: int = setting("group.share.max.session.timeout.ms")
    share_heartbeat_interval_ms: int = setting("group.share.heartbeat.interval.ms")
    share_min_heartbeat_interval_ms: int = setting("group.share.min.heartbeat.interval.ms")
    share_max_heartbeat_interval_ms: int = setting("group.share.max.heartbeat.interval.ms")
    share_assignment_interval_ms: int = setting("group.share.assignment.interval.ms")
    share_min_assignment_interval_ms: int = setting("group.share.min.assignment.interval.ms")
    share_max_assignment_interval_ms: int = setting("group.share.max.assignment.interval.ms")
    share_max_size: int = setting("group.share.max.size")

    streams_session_timeout_ms: int = setting("group.streams.session.timeout.ms")
    streams_min_session_timeout_ms: int = setting("group.streams.min.session.timeout.ms")
    streams_max_session_timeout_ms: int = setting("group.streams.max.session.timeout.ms")
    streams_heartbeat_interval_ms: int = setting("group.streams.heartbeat.interval.ms")
    streams_min_heartbeat_interval_ms: int = setting("group.streams.min.heartbeat.interval.ms")
    streams_max_heartbeat_interval_ms: int = setting("group.streams.max.heartbeat.interval.ms")
    streams_assignment_interval_ms: int = setting("group.streams.assignment.interval.ms")
    streams_min_assignment_interval_ms: int = setting("group.streams.min.assignment.interval.ms")
    streams_max_assignment_interval_ms: int = setting("group.streams.max.assignment.interval.ms")
    streams_initial_rebalance_delay_ms: int = setting("group.streams.initial.rebalance.delay.ms")
    streams_num_standby_replicas: int = setting("group.streams.num.standby.replicas")
    streams_max_standby_replicas: int = setting("group.streams.max.standby.replicas")
    streams_max_size: int = setting("group.streams.max.size")

    @classmethod
    def of(cls, config: BrokerConfig) -> GroupSettings:
        """The effective settings. Raises ConfigError if an assignor is unknown."""
        room = config.log_settings().max_message_bytes - HEADER_BYTES
        return read_settings(cls, config, max_batch_bytes=room)
