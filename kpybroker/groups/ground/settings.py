"""The broker's settings of groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kpybroker.config import BrokerConfig, LogSettings
from kpybroker.config.component import read_settings, setting
from kpybroker.errors import ConfigError

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""A member that has never completed a join is dropped after this long: it cannot send heartbeats yet, and its client
may be gone (Kafka has the same five minutes, and no setting for it)."""
ASSIGNOR_CLASSES = {
    "uniform": "org.apache.kafka.coordinator.group.assignor.UniformAssignor",
    "range": "org.apache.kafka.coordinator.group.assignor.RangeAssignor",
}
"""The assignors of consumer groups (KIP-848), and the classes of Kafka's that do the same."""
BATCH_HEADER_BYTES = 61
MS_A_MINUTE = 60_000


def _assignors(named: tuple[str, ...]) -> tuple[str, ...]:
    """By their short names. Raises ConfigError."""
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
    """Limits and times of groups. Sizes in bytes, times in milliseconds unless the name says otherwise."""

    group_initial_rebalance_delay_ms: int = setting("group.initial.rebalance.delay.ms")
    group_min_session_timeout_ms: int = setting("group.min.session.timeout.ms")
    group_max_session_timeout_ms: int = setting("group.max.session.timeout.ms")
    group_max_size: int = setting("group.max.size")
    offset_metadata_max_bytes: int = setting("offset.metadata.max.bytes")
    offsets_retention_ms: int = setting("offsets.retention.minutes", lambda minutes: minutes * MS_A_MINUTE)
    offsets_retention_check_interval_ms: int = setting("offsets.retention.check.interval.ms")
    max_batch_bytes: int = LogSettings().max_message_bytes - BATCH_HEADER_BYTES
    """What one step may write: a batch of `__consumer_offsets`, less its header."""
    max_pending_members: int = 10_000
    """Member ids handed out in one group and not yet used. Each is forgotten after its session timeout."""
    max_groups: int = 1_000_000
    """Groups in one partition of `__consumer_offsets`."""
    first_join_pause_ms: int = 2
    """How long the first generation of a new group waits, after whoever came last, for members that start at the same
    time, where the initial rebalance delay is 0. Without it the first member would be alone in a generation, and learn
    of the others only at its next heartbeat, three seconds later with stock clients."""
    first_join_limit_ms: int = 100
    """How long it waits in all, also for members that were given an id and have not come back with it."""

    consumer_assignors: tuple[str, ...] = setting("group.consumer.assignors", _assignors)
    """The assignors that members may ask for; the first one if none does."""
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
    may_upgrade: bool = setting("group.consumer.migration.policy", _policy_has("UPGRADE"))
    """A group of the classic protocol becomes one of the consumer protocol when a member of that joins."""
    may_downgrade: bool = setting("group.consumer.migration.policy", _policy_has("DOWNGRADE"))
    """It becomes a classic one again when the last member of the consumer protocol has left others behind."""

    @classmethod
    def of(cls, config: BrokerConfig) -> GroupSettings:
        """The settings in force. Raises ConfigError: an assignor is not known."""
        room = config.log_settings().max_message_bytes - BATCH_HEADER_BYTES
        return read_settings(cls, config, max_batch_bytes=room)
