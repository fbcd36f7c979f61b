"""The commands of the share machine of one `__share_group_state` partition. Each command lists its errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kpybroker.shares.batches import StateBatch
from kpybroker.shares.keys import ShareKey


class Initialize(NamedTuple):
    """Begin the state of a share partition, in place of an earlier one. Answered with None.

    If a leader has used the state that this state epoch began, nothing changes: the command is a late retry.

    Raises INVALID_REQUEST, UNKNOWN_TOPIC_OR_PARTITION, FENCED_STATE_EPOCH, or COORDINATOR_NOT_AVAILABLE at the limit.
    """

    key: ShareKey
    state_epoch: int
    start: int


class Read(NamedTuple):
    """Read the state for a new leader of the partition, and fence earlier leaders. Answered with the ShareState.

    Raises INVALID_REQUEST if the state was never initialized; FENCED_LEADER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION.
    """

    key: ShareKey
    leader_epoch: int


class Write(NamedTuple):
    """Merge batches into the state. Answered with None.

    Raises INVALID_REQUEST if the state was never initialized, or for impossible batches; FENCED_LEADER_EPOCH,
    FENCED_STATE_EPOCH, UNKNOWN_TOPIC_OR_PARTITION.
    """

    key: ShareKey
    state_epoch: int
    leader_epoch: int
    start: int
    complete_count: int
    batches: Sequence[StateBatch]


class Delete(NamedTuple):
    """Delete the state. Answered with None, even if there is none. Raises UNKNOWN_TOPIC_OR_PARTITION."""

    key: ShareKey


class ReadSummary(NamedTuple):
    """Read the state without fencing leaders. Answered with the ShareState, or None. Raises
    UNKNOWN_TOPIC_OR_PARTITION."""

    key: ShareKey


@dataclass(frozen=True, slots=True)
class BeginRound:
    """Begin a round now, to delete the state of deleted topics. Answered with None."""


@dataclass(frozen=True, slots=True)
class FindNeeded:
    """Find the first offset of the log that a replay needs: everything below may be deleted. Answered with this
    offset."""
