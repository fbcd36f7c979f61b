"""The disk below the metadata log: what a node of the quorum leaves to others while it does not answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kpybroker.raft.core import state as raft
from kpybroker.raft.driver import Driver
from kpybroker.storage.dirs.disk_watch import DiskWatch

if TYPE_CHECKING:
    from kpybroker.world import World


class MetadataDisk:
    """A leader resigns when its disk has been silent for as long as voters bear with a leader that is: the fetch
    timeout. Until the disk answers, whatever would have to be on it first is taken for lost on its way here: a vote, a
    new epoch. That would hold the whole node, and another one asks, or tells, again."""

    def __init__(self, world: World, driver: Driver) -> None:
        self._driver = driver
        timeout_ms = driver.config.controller_quorum_fetch_timeout_ms
        outcome = "this node takes no part in elections, and does not lead the quorum"
        self._watch = DiskWatch(world, (driver.path,), timeout_ms, self._changed, outcome)

    def start(self) -> None:
        """Watch the disk."""
        self._watch.start()

    def stop(self) -> None:
        """Watch it no more."""
        self._watch.stop()

    def keeps_from(self, event: raft.Event, effects: Sequence[raft.Effect]) -> bool:
        """This step would write, and cannot. Time goes on all the same."""
        return (
            bool(self._watch.hung)
            and type(event) is not raft.Tick
            and any(type(effect) is raft.Persist for effect in effects)
        )

    def _changed(self) -> None:
        if self._watch.hung and self._driver.state.is_leader and self._driver.state.others:
            self._driver.step(raft.Resign())
