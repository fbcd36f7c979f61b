"""The news of a follower's fetch session: the partitions that have changed since the follower's last Fetch."""

from __future__ import annotations

from typing import Generic, TypeVar

from kpybroker.replication.partition.flush_queue import Waiter

NEVER_MS = -(1 << 62)
"""A time before any time of the event loop's clock."""
W = TypeVar("W")


class News(Generic[W]):
    """The partitions of a follower's session that its next Fetch checks, and its parked Fetch."""

    __slots__ = ("broker_epoch", "counted_ms", "waiter", "wants")

    def __init__(self) -> None:
        self.wants: dict[W, None] = {}
        """Partitions that were in the last Fetch, that have changed, or that have more records to send."""
        self.waiter: Waiter | None = None
        """The parked Fetch."""
        self.counted_ms = NEVER_MS
        """The time at which the leader last counted all partitions of the session. `broker_epoch` is the follower's
        epoch at that time."""
        self.broker_epoch = -1

    def is_due(self, broker_epoch: int, now_ms: int, every_ms: int) -> bool:
        """Whether to count all partitions now, because the interval has passed or the follower has restarted. If so,
        note that they are counted."""
        if broker_epoch == self.broker_epoch and now_ms - self.counted_ms < every_ms:
            return False
        self.broker_epoch, self.counted_ms = broker_epoch, now_ms
        return True

    def park(self, waiter: Waiter) -> None:
        """Settle this Fetch when a partition changes."""
        self.waiter = waiter

    def unpark(self, waiter: Waiter) -> None:
        """Forget this Fetch, because it has ended."""
        if self.waiter is waiter:
            self.waiter = None
