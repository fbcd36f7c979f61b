"""The timer for the next Tick of a node of the quorum."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kpybroker.raft.core.state import LATE_MS, READING_MS

SHORT_RETRY_MS = 500
"""The time after which a write is retried for which no file descriptor was left."""


class ElectionTimer:
    """Calls `tick` at the set time. Times are in milliseconds of the event loop's clock."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._handle: asyncio.TimerHandle | None = None
        self._at_ms = 0

    def set(self, at_ms: int) -> None:
        """Set the time of the next tick. If an earlier time is set already, it stays: that tick will set the timer
        again."""
        if self._handle is not None and self._at_ms <= at_ms:
            return
        self.cancel()
        self._at_ms = at_ms
        loop = asyncio.get_running_loop()
        self._handle = loop.call_later(max(at_ms / 1000 - loop.time(), 0.001), self.fire)

    def cancel(self) -> None:
        """Do not tick until the timer is set again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def fire(self) -> None:
        """Call `tick`. If this node was stalled, first let it read the data that waits in its sockets."""
        self._handle = None
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        if now_ms - self._at_ms > LATE_MS:
            self.set(now_ms + READING_MS)
        else:
            self._tick()
