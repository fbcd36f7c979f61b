"""Detects hanging disks: a write or sync does not finish although other work waits for it.

Writes and syncs run on threads, so the rest of the node continues, including its heartbeats. Therefore no other node
can detect the hang.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable

from kpybroker.world import World

log = logging.getLogger(__name__)

LOOKS_EVERY_S = 0.25
OTHERS_LEAD = "other brokers should lead in the meantime, if there are any"


class DiskWatch:
    """Watches the disks of some directories. `hung` contains the directories whose disk has not responded for
    `timeout_ms`.

    `on_change` is called when a disk stops responding and when it responds again. `outcome` is the part of the log line
    that describes the consequence. `out` contains the offline directories, which are not watched.
    """

    def __init__(
        self,
        world: World,
        paths: Iterable[str],
        timeout_ms: int,
        on_change: Callable[[], None],
        outcome: str = OTHERS_LEAD,
        out: Container[str] = (),
    ) -> None:
        self._world = world
        self._devices = {path: world.disk.device(path) for path in paths}
        self._timeout_ms = timeout_ms
        self._outcome = outcome
        self._on_change = on_change
        self._out = out
        self._suspects: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.hung: dict[str, int] = {}
        """The time at which the disk stopped responding, by directory, in milliseconds of the steady clock."""

    def start(self) -> None:
        """Check the disks every LOOKS_EVERY_S until `stop` is called."""
        self._timer = asyncio.get_running_loop().call_later(LOOKS_EVERY_S, self._look_again)

    def stop(self) -> None:
        """Stop checking the disks."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_again(self) -> None:
        self.start()
        self.look()

    def look(self) -> None:
        """Check all disks. A disk counts as hanging only after two checks in a row: after a stall of the whole process,
        the end of its write or sync may not have been processed yet at the first check."""
        now_ms, suspects, has_changed = self._world.steady_ms(), self._suspects, False
        self._suspects = set()
        for path, device in self._devices.items():
            silent_ms = device.silent_ms(now_ms)
            if path in self._out:
                has_changed |= self.hung.pop(path, None) is not None
            elif silent_ms >= self._timeout_ms:
                self._suspects.add(path)
                if path in suspects and path not in self.hung:
                    self.hung[path] = now_ms - silent_ms
                    has_changed = True
                    log.critical("%s: its disk has not responded for %d ms; %s", path, silent_ms, self._outcome)
            elif path in self.hung:
                has_changed = True
                log.warning("%s: its disk responds again, after %d ms", path, now_ms - self.hung.pop(path))
        if has_changed:
            self._on_change()
