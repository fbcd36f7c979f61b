"""A voter on an empty directory: is it one of a new cluster, or one that has lost what it had?

With voters that the settings name (kraft.version 0) it is a voter by its id either way, and nothing tells the others.
So it votes for who has an empty log, too: a majority of those forms a new cluster, and an old one is never led by its
help. That ends when it has what its former self can have promised (`raft.state.CaughtUp`). A file keeps it over
restarts. Kafka leaves it to the operator, who formats the directory.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kpybroker.storage.dirs.formatting import NEW_VOTER

if TYPE_CHECKING:
    from kpybroker.world import World

log = logging.getLogger(__name__)

WARN_EVERY_MS = 60_000


class Newcomer:
    """The file that says that this voter is new."""

    def __init__(self, world: World, directory: str) -> None:
        self._world = world
        self._path = f"{directory}/{NEW_VOTER}"
        self._warned_ms: int | None = None

    @property
    def is_new(self) -> bool:
        """It has not caught up since the directory was made. Looks at the disk."""
        return self._world.disk.exists(self._path)

    def caught_up(self) -> None:
        """It votes as any other does from now on. Raises OSError."""
        if self.is_new:
            self._world.disk.unlink(self._path)
            log.info("this voter has caught up with the metadata quorum")

    def refused(self, candidate: int) -> None:
        """A candidate was denied the vote that might be this node's second one: said now and then."""
        now_ms = self._world.steady_ms()
        if self._warned_ms is None or now_ms - self._warned_ms >= WARN_EVERY_MS:
            self._warned_ms = now_ms
            log.warning(
                "this voter has an empty directory, or had one and has not caught up since, and does not vote for node "
                "%d, which has a log: start the other voters; if they are lost for good, read %s",
                candidate,
                self._path,
            )
