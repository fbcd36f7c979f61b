"""The follower's side of an incremental fetch session (KIP-227): each Fetch contains only changed partitions.

The leader's side is `partition.sessions`. A leader that has no room for a session responds with session id 0. In that
case, every Fetch is a full one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kpybroker.replication.follower.follower_log import FetchPosition
from kpybroker.replication.partition.sessions import EPOCH_MAX, INITIAL_EPOCH
from kpybroker.topics import TopicIdPartition

NAMED_MAX = 2500
"""The maximum number of partitions in one Fetch. The leader processes them without a pause, in about 15 ms."""


class PartitionFetch(NamedTuple):
    """The fields of a Fetch for one partition."""

    place: FetchPosition
    log_start: int
    max_bytes: int


class FetchSession:
    """A fetch session with one leader, and the fields that the leader knows from its earlier Fetches."""

    def __init__(self) -> None:
        self.id = 0
        self.epoch = INITIAL_EPOCH
        self._told: dict[TopicIdPartition, PartitionFetch] = {}
        self.is_refused = False
        """Whether the leader's last response had no session, because the leader has no room for it."""

    @property
    def is_new(self) -> bool:
        """Whether there is no session yet, so that the next Fetch is a full one."""
        return self.epoch == INITIAL_EPOCH

    def news(
        self, wanted: Mapping[TopicIdPartition, PartitionFetch | None], *, is_whole: bool = True
    ) -> tuple[dict[TopicIdPartition, PartitionFetch], list[TopicIdPartition], list[TopicIdPartition]]:
        """The contents of the next Fetch: new or changed partitions, and partitions to forget. Also returns the
        partitions that are left for later Fetches.

        In `wanted`, None marks a partition to forget. If `is_whole` is true, `wanted` has all partitions, and any other
        partition of the session is to be forgotten.
        """
        told, left = self._told, []
        changed = {key: asked for key, asked in wanted.items() if asked is not None and told.get(key) != asked}
        if len(changed) > NAMED_MAX:
            left = list(changed)[NAMED_MAX:]
            for key in left:
                del changed[key]
        if is_whole:
            gone = [key for key in told if wanted.get(key) is None]
        else:
            gone = [key for key, asked in wanted.items() if asked is None and key in told]
        for key in gone:
            del told[key]
        told.update(changed)
        return changed, gone, left

    def answered(self, session_id: int) -> None:
        """Record that the leader has accepted the Fetch, in this session."""
        self.is_refused = session_id == 0
        if session_id == 0:
            self.end()
        elif self.epoch == INITIAL_EPOCH:
            self.id, self.epoch = session_id, 1
        else:
            self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1

    def end(self) -> None:
        """Make the next Fetch a full one, which opens another session."""
        self.id, self.epoch = 0, INITIAL_EPOCH
        self._told = {}
