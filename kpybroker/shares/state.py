"""The state of one share partition, as its coordinator stores it, and the changes that records make to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kpybroker.shares.batches import StateBatch, merged

UNINITIALIZED = -1
"""A start offset that is not known yet: the leader determines it by share.auto.offset.reset. In an update: the start
offset does not change."""
NO_COUNT = -1
NO_EPOCH = -1
"""In a request: the epoch is not checked."""


@dataclass(frozen=True, slots=True)
class ShareState:
    """The contents of a ShareSnapshot record.

    - state_epoch: the group epoch at which the state was initialized; writes with an earlier epoch are refused.
    - leader_epoch: the epoch of the latest partition leader that has read the state; earlier leaders may neither read
      nor write it.
    - start: the first offset that is neither acknowledged nor archived, or UNINITIALIZED.
    - complete_count: how many offsets from `start` on are acknowledged or archived, or NO_COUNT.
    """

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start: int
    complete_count: int = NO_COUNT
    batches: tuple[StateBatch, ...] = ()
    created_ms: int = 0
    written_ms: int = 0

    def is_used(self, start: int) -> bool:
        """Whether a leader has read or written the state since it was initialized with this start."""
        is_found = start == UNINITIALIZED and self.start != UNINITIALIZED
        return bool(self.batches) or self.leader_epoch > 0 or is_found

    def updated(
        self, leader_epoch: int, start: int, complete_count: int, told: Iterable[StateBatch] = ()
    ) -> ShareState:
        """The state after an update. Its batches (`told`) are merged into the known ones; batches below the start are
        dropped."""
        new_start = self.start if start == UNINITIALIZED else start
        return replace(
            self,
            leader_epoch=leader_epoch,
            start=new_start,
            complete_count=complete_count,
            batches=merged(self.batches, told, new_start),
        )

    def as_snapshot(self, now_ms: int) -> ShareState:
        """The same state, for a snapshot record."""
        return replace(self, snapshot_epoch=self.snapshot_epoch + 1, written_ms=now_ms)


def initialized(known: ShareState | None, state_epoch: int, start: int, now_ms: int) -> ShareState:
    """The state that a group coordinator initializes, in place of an earlier one."""
    return ShareState(
        snapshot_epoch=0 if known is None else known.snapshot_epoch + 1,
        state_epoch=state_epoch,
        leader_epoch=0,
        start=start,
        complete_count=NO_COUNT if start == UNINITIALIZED else 0,
        created_ms=now_ms,
        written_ms=now_ms,
    )
