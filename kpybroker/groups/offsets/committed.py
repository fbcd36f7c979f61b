"""The fields of a committed offset, and its expiry."""

from __future__ import annotations

from typing import NamedTuple


class Committed(NamedTuple):
    """One committed offset, with the fields of OffsetCommitValue. It is a tuple, because a replay creates thousands."""

    offset: int
    leader_epoch: int
    """-1 if the client did not send it."""
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    """The time at which the offset expires even if the group is in use, for clients that send a retention time
    (OffsetCommit v2 to v4); -1 for never."""
    topic_id: bytes

    def expired(self, unused_since_ms: int, wall_ms: int, retention_ms: int) -> bool:
        """Whether the offset may be deleted after the group stopped using it at `unused_since_ms` (KIP-211)."""
        if self.expire_timestamp_ms >= 0:
            return wall_ms >= self.expire_timestamp_ms
        return wall_ms - unused_since_ms >= retention_ms
