"""Marks a voter that starts on an empty directory: its cluster may be new, or the voter may have lost its disk.

If the settings determine the voters (kraft.version 0), a voter is identified by its id alone, and no node can
distinguish the two cases. Therefore such a voter votes only for candidates that also have an empty log. A majority of
such voters can form a new cluster, but no leader of an existing cluster is elected by a vote that may be this voter's
second one in an epoch. The restriction ends once the voter has all records that it may have acknowledged before
(`raft.core.state.CaughtUp`). A file preserves it across restarts. Apache Kafka has no such restriction: the operator is
responsible when formatting a directory.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kpybroker.storage.dirs.formatting import NEW_VOTER

if TYPE_CHECKING:
    from kpybroker.world import World

log = logging.getLogger(__name__)

WARN_EVERY_MS = 60_000


class NewVoter:
    """The file that marks this voter as new."""

    def __init__(self, world: World, directory: str) -> None:
        self._world = world
        self._path = f"{directory}/{NEW_VOTER}"
        self._warned_ms: int | None = None

    @property
    def is_new(self) -> bool:
        """Whether this voter has not caught up since its directory was formatted. Reads the disk."""
        return self._world.disk.exists(self._path)

    def caught_up(self) -> None:
        """Remove the file: from now on this voter votes like any other. Raises OSError."""
        if self.is_new:
            self._world.disk.unlink(self._path)
            log.info("this voter has caught up with the metadata quorum")

    def refused(self, candidate: int) -> None:
        """Log that this voter refused to vote for a candidate, at most once a minute."""
        now_ms = self._world.steady_ms()
        if self._warned_ms is None or now_ms - self._warned_ms >= WARN_EVERY_MS:
            self._warned_ms = now_ms
            log.warning(
                "this voter started with an empty directory and has not caught up since. So it does not vote for node "
                "%d, which has a log. Start the other voters; if they are lost permanently, read %s",
                candidate,
                self._path,
            )
