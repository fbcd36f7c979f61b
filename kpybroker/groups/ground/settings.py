"""What the group machine reads of the broker's configuration, with Kafka's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""A member that has never completed a join is dropped after this long: it cannot send heartbeats yet, and its client
may be gone (Kafka has the same five minutes, and no setting for it)."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Limits and times of groups. Sizes in bytes, times in milliseconds unless the name says otherwise."""

    group_initial_rebalance_delay_ms: int = 0
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3600 * 1000
    offsets_retention_check_interval_ms: int = 600_000
    max_batch_bytes: int = 1_048_588 - 61
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

    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The assignors that members may ask for; the first one if none does."""
    consumer_session_timeout_ms: int = 45_000
    consumer_min_session_timeout_ms: int = 45_000
    consumer_max_session_timeout_ms: int = 60_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_min_heartbeat_interval_ms: int = 5_000
    consumer_max_heartbeat_interval_ms: int = 15_000
    consumer_assignment_interval_ms: int = 1_000
    consumer_min_assignment_interval_ms: int = 0
    consumer_max_assignment_interval_ms: int = 15_000
    consumer_max_size: int = 2**31 - 1
    may_upgrade: bool = True
    """A group of the classic protocol becomes one of the consumer protocol when a member of that joins."""
    may_downgrade: bool = True
    """It becomes a classic one again when the last member of the consumer protocol has left others behind."""
