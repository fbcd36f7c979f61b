"""What a leader must report to a follower: the partitions of the follower's session that changed since its last
Fetch."""

from __future__ import annotations

from typing import Generic, TypeVar

from kpybroker.replication.partition.flush_queue import Waiter

NEVER_MS = -(1 << 62)
"""Earlier than any time of the loop's clock."""
W = TypeVar("W")


class News(Generic[W]):
    """The part of a follower's session that its next Fetch looks at."""

    __slots__ = ("broker_epoch", "counted_ms", "waiter", "wants")

    def __init__(self) -> None:
        self.wants: dict[W, None] = {}
        """Partitions that the Fetch named, that changed, or that have more to send."""
        self.waiter: Waiter | None = None
        """The parked Fetch."""
        self.counted_ms = NEVER_MS
        """When the leader last counted all partitions of the session; `broker_epoch` is the follower's at that time."""
        self.broker_epoch = -1

    def is_due(self, broker_epoch: int, now_ms: int, every_ms: int) -> bool:
        """Whether to count all partitions now, because it is time or the follower is a new incarnation. If so, notes
        that they are counted."""
        if broker_epoch == self.broker_epoch and now_ms - self.counted_ms < every_ms:
            return False
        self.broker_epoch, self.counted_ms = broker_epoch, now_ms
        return True

    def park(self, waiter: Waiter) -> None:
        """Settle this Fetch when there is news."""
        self.waiter = waiter

    def unpark(self, waiter: Waiter) -> None:
        """This Fetch is over."""
        if self.waiter is waiter:
            self.waiter = None
