"""A committed offset, and the partition it is of."""

from __future__ import annotations

from typing import NamedTuple


class Committed(NamedTuple):
    """One committed offset, as OffsetCommitValue keeps it; a tuple, since a replay makes thousands."""

    offset: int
    leader_epoch: int
    """-1 where the client did not say."""
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    """-1, or when it expires whatever the group does (clients that give a retention time: OffsetCommit v2 to v4)."""
    topic_id: bytes

    def expired(self, unused_since_ms: int, wall_ms: int, retention_ms: int) -> bool:
        """True if it may be forgotten, being of no use to its group since `unused_since_ms` (KIP-211)."""
        if self.expire_timestamp_ms >= 0:
            return wall_ms >= self.expire_timestamp_ms
        return wall_ms - unused_since_ms >= retention_ms
