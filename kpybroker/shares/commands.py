"""The commands of the share machine of one `__share_group_state` partition. Errors are said at each command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kpybroker.shares.batches import StateBatch
from kpybroker.shares.keys import ShareKey


@dataclass(frozen=True, slots=True)
class Initialize:
    """Begin the state of a share partition, or begin it anew; answered with None.

    Raises INVALID_REQUEST, UNKNOWN_TOPIC_OR_PARTITION, FENCED_STATE_EPOCH, COORDINATOR_NOT_AVAILABLE at the limit.
    """

    key: ShareKey
    state_epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class Read:
    """The leader of a partition begins with the state; answered with the ShareState. An earlier leader is fenced.

    Raises INVALID_REQUEST if nobody initialized it; FENCED_LEADER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION.
    """

    key: ShareKey
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Write:
    """Merge batches into the state; answered with None.

    Raises INVALID_REQUEST if nobody initialized it, or for batches that cannot be; FENCED_LEADER_EPOCH,
    FENCED_STATE_EPOCH, UNKNOWN_TOPIC_OR_PARTITION.
    """

    key: ShareKey
    state_epoch: int
    leader_epoch: int
    start: int
    complete_count: int
    batches: Sequence[StateBatch]


@dataclass(frozen=True, slots=True)
class Delete:
    """Forget the state; answered with None, also if there is none. Raises UNKNOWN_TOPIC_OR_PARTITION."""

    key: ShareKey


@dataclass(frozen=True, slots=True)
class ReadSummary:
    """Answered with the ShareState, or None if there is none. Raises UNKNOWN_TOPIC_OR_PARTITION."""

    key: ShareKey


@dataclass(frozen=True, slots=True)
class BeginRound:
    """Topics were deleted: forget their state now, and not at the next round. Answered with None."""


@dataclass(frozen=True, slots=True)
class FindNeeded:
    """Answered with the first offset of the log that a replay needs; everything below may be deleted."""
