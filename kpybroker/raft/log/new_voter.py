"""A voter on an empty directory: it may belong to a new cluster, or may have lost its disk.

When the settings name the voters (kraft.version 0), it votes by its id in both cases, and no node can tell them apart.
So it votes only for candidates whose logs are empty too: a majority of those forms a new cluster, while no leader of an
existing cluster is ever elected by a vote that may be this voter's second one. The limit ends once it has everything
that it may have acknowledged before (`raft.core.state.CaughtUp`). A file preserves it across restarts. Kafka leaves
this to the operator, who formats the directory.
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
        """From now on this voter votes like any other. Raises OSError."""
        if self.is_new:
            self._world.disk.unlink(self._path)
            log.info("this voter has caught up with the metadata quorum")

    def refused(self, candidate: int) -> None:
        """Log, at most once a minute, that a candidate was refused a vote that might be this node's second one."""
        now_ms = self._world.steady_ms()
        if self._warned_ms is None or now_ms - self._warned_ms >= WARN_EVERY_MS:
            self._warned_ms = now_ms
            log.warning(
                "this voter has an empty directory, or had one and has not caught up since: it does not vote for node "
                "%d, which has a log: start the other voters; if they are lost for good, read %s",
                candidate,
                self._path,
            )
