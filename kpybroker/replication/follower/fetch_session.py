"""The follower's side of an incremental fetch session (KIP-227): it asks again only for what has changed.

The leader's side is `sessions`, which consumers use too. A leader without room for a session answers with id 0, and
every fetch is then a whole one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kpybroker.replication.follower.follower_log import FetchPosition
from kpybroker.replication.partition.sessions import EPOCH_MAX, INITIAL_EPOCH

NAMED_MAX = 2500
"""So many partitions one Fetch tells of: the leader looks at them in one go, some 15 ms."""
Key = tuple[bytes, int]
"""Topic id and partition."""


class PartitionFetch(NamedTuple):
    """What a fetch says of one partition."""

    place: FetchPosition
    log_start: int
    max_bytes: int


class FetchSession:
    """What the leader has been told, and may take for granted from now on."""

    def __init__(self) -> None:
        self.id = 0
        self.epoch = INITIAL_EPOCH
        self._told: dict[Key, PartitionFetch] = {}
        self.is_refused = False
        """The leader has no room for one, as of its last answer."""

    @property
    def is_new(self) -> bool:
        """The leader knows nothing yet: everything must be said."""
        return self.epoch == INITIAL_EPOCH

    def news(
        self, wanted: Mapping[Key, PartitionFetch | None], *, is_whole: bool = True
    ) -> tuple[dict[Key, PartitionFetch], list[Key], list[Key]]:
        """What the leader must be told to know all that is wanted: new or changed, not wanted any more, and what is
        left for later Fetches since there is too much of it.

        `wanted` has None for what is not; where it is the whole, what it does not name is not wanted either.
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
        """The leader has taken the fetch, under this session."""
        self.is_refused = session_id == 0
        if session_id == 0:
            self.end()
        elif self.epoch == INITIAL_EPOCH:
            self.id, self.epoch = session_id, 1
        else:
            self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1

    def end(self) -> None:
        """The next fetch is a whole one, and begins another session."""
        self.id, self.epoch = 0, INITIAL_EPOCH
        self._told = {}
