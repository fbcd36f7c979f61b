"""Watches the disk of the metadata log. A node with a hung disk resigns and takes no part in elections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kpybroker.raft.core import state as raft
from kpybroker.raft.driver import Driver
from kpybroker.storage.dirs.disk_watch import DiskWatch

if TYPE_CHECKING:
    from kpybroker.world import World


class MetadataDisk:
    """Detects a hung disk: one that has not responded for controller.quorum.fetch.timeout.ms. A leader then resigns.

    While the disk hangs, the node ignores every request that needs a write (a vote, a new epoch), as if it had been
    lost on the network. The write would block the whole node, and the sender will repeat the request.
    """

    def __init__(self, world: World, driver: Driver) -> None:
        self._driver = driver
        timeout_ms = driver.config.controller_quorum_fetch_timeout_ms
        outcome = "this node takes no part in elections and does not lead the quorum"
        self._watch = DiskWatch(world, (driver.path,), timeout_ms, self._changed, outcome)

    def start(self) -> None:
        """Watch the disk."""
        self._watch.start()

    def stop(self) -> None:
        """Stop watching."""
        self._watch.stop()

    def forbids(self, event: raft.Event, effects: Sequence[raft.Effect]) -> bool:
        """Whether this step would write to a hung disk. Ticks are never forbidden: timeouts must continue to work."""
        return (
            bool(self._watch.hung)
            and type(event) is not raft.TimerTick
            and any(type(effect) is raft.Persist for effect in effects)
        )

    def _changed(self) -> None:
        if self._watch.hung and self._driver.is_leader and self._driver.state.others:
            self._driver.step(raft.Resign())
