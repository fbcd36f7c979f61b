"""Runs of offsets with the same state, in which a share partition stores the records in flight."""

from __future__ import annotations

from typing import NamedTuple

from kpybroker.shares.batches import DeliveryState

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = (
    DeliveryState.AVAILABLE,
    DeliveryState.ACQUIRED,
    DeliveryState.ACKNOWLEDGED,
    DeliveryState.ARCHIVING,
    DeliveryState.ARCHIVED,
)


class Letter(NamedTuple):
    """Records that become dead letters (KIP-1191), from the first to the last offset.

    is_rejected: whether a member has rejected them; if not, they were delivered too often, or another leader has seen
    the reason.
    """

    first: int
    last: int
    deliveries: int
    is_rejected: bool


class Run:
    """Offsets with the same state and number of deliveries."""

    __slots__ = (
        "batch_size",
        "deadline_ms",
        "deliveries",
        "first",
        "is_rejected",
        "last",
        "member_id",
        "pending",
        "state",
    )

    def __init__(self, first: int, last: int, state: DeliveryState, deliveries: int, batch_size: int) -> None:
        self.first, self.last = first, last
        self.state = state
        self.deliveries = deliveries
        self.batch_size = batch_size
        """The number of records that were delivered together in the first delivery."""
        self.member_id: str | None = None
        self.deadline_ms = 0
        """The time at which the lock ends, if the run is acquired."""
        self.pending: DeliveryState | None = None
        """The state of the run once a pending write has succeeded; None if none is pending."""
        self.is_rejected = False
        """Whether a member rejects the records; unknown, and False, for records that another leader has archived."""

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def acquire(self, member_id: str, deadline_ms: int) -> None:
        """Deliver the run to a member."""
        if not self.deliveries:
            self.batch_size = self.size
        self.state, self.member_id, self.deadline_ms = ACQUIRED, member_id, deadline_ms
        self.deliveries += 1

    def renew(self, deadline_ms: int) -> None:
        """Extend the lock."""
        self.deadline_ms = deadline_ms

    def become(self, state: DeliveryState) -> None:
        """Change to a state other than ACQUIRED."""
        self.state, self.member_id, self.pending = state, None, None
        self.is_rejected = self.is_rejected and state is ARCHIVING

    def wait(self, state: DeliveryState | None, *, is_rejected: bool = False) -> None:
        """Store the state that the run will have once a write has succeeded. None: the run keeps its state."""
        self.pending, self.is_rejected = state, is_rejected

    def cut_at(self, offset: int) -> Run:
        """Move the offsets from this one on into a new run, and return that."""
        rest = Run(offset, self.last, self.state, self.deliveries, self.batch_size)
        rest.member_id, rest.deadline_ms, rest.pending = self.member_id, self.deadline_ms, self.pending
        rest.is_rejected = self.is_rejected
        self.last = offset - 1
        return rest

    def takes(self, other: Run) -> bool:
        """Append the offsets of the next run to this run, if both have the same state and are not acquired. Returns
        whether this was done."""
        if self.state != other.state or self.state is ACQUIRED:
            return False
        if self.state in (AVAILABLE, ARCHIVING) and self.deliveries != other.deliveries:
            return False
        if self.is_rejected != other.is_rejected:
            return False
        self.last = other.last
        self.batch_size = max(self.batch_size, other.batch_size)
        return True
