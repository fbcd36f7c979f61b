"""The settings of one partition's log: the typed view of a topic's settings.

The fields are named like the topic settings, in snake_case and with Kafka's units (`_ms`, `_bytes`). Defaults are those
of Kafka 4.3; a test compares them with the table in `topic_keys`.
"""

from __future__ import annotations

from dataclasses import dataclass

LONG_MAX = (1 << 63) - 1
DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The effective settings of one log: topic overrides take precedence over broker settings, and those over
    defaults."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    max_message_bytes: int = 1048588
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    min_insync_replicas: int = 1
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    file_delete_delay_ms: int = 60_000
    delete_retention_ms: int = DAY_MS
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    preallocate: bool = False
    unclean_leader_election_enable: bool = False
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    min_cleanable_dirty_ratio: float = 0.5
    leader_replication_throttled_replicas: frozenset[str] = frozenset()
    follower_replication_throttled_replicas: frozenset[str] = frozenset()
    """`partition:broker`, or `*` (KIP-73)."""
    delivery_scheduled: bool = False
    """Whether records may be scheduled with the headers `deliver-at` and `deliver-after`."""
    delivery_max_ahead_ms: int = 365 * DAY_MS
    delivery_max_pending: int = 10_000_000
    fsync_always: bool = False
    """Whether records are on disk, and not only in the page cache, before they are acknowledged. This is so if
    `kpybroker.fsync=always`, flush.messages or flush.ms is set."""
    record_validation_full: bool = True
    """The broker's `kpybroker.record.validation=full`: the records of clients' batches are checked."""
    replayed: bool = False
    """Whether a coordinator replays the whole log before it serves requests. Such an internal topic is compacted
    early."""

    @property
    def compacted(self) -> bool:
        """Whether cleanup.policy has `compact`. If so, every record needs a key."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether cleanup.policy has `delete`. If so, retention by time and size applies."""
        return "delete" in self.cleanup_policy
