"""The timer of a node of the quorum: when the next Tick is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kpybroker.raft.core.state import LATE_MS, READING_MS

SHORT_RETRY_MS = 500
"""When to try again what needs a descriptor, where there was none."""


class ElectionTimer:
    """Calls `tick` once for each time that was set. Times are milliseconds of the loop's clock."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._handle: asyncio.TimerHandle | None = None
        self._at_ms = 0

    def set(self, at_ms: int) -> None:
        """Tick at that time, at the latest. A timer set for earlier stays: the quorum looks again when it fires."""
        if self._handle is not None and self._at_ms <= at_ms:
            return
        self.cancel()
        self._at_ms = at_ms
        loop = asyncio.get_running_loop()
        self._handle = loop.call_later(max(at_ms / 1000 - loop.time(), 0.001), self.fire)

    def cancel(self) -> None:
        """No tick until it is set again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def fire(self) -> None:
        """Time is up. After a stall of this node what others have said may wait in the sockets: that is read first."""
        self._handle = None
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        if now_ms - self._at_ms > LATE_MS:
            self.set(now_ms + READING_MS)
        else:
            self._tick()
