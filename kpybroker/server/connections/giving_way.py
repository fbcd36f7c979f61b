"""A parked Fetch gives way to a request of another kind behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kpybroker.call import Reply

GIVE_WAY_EVERY_S = 0.05
"""The least interval: a client that alternates between both kinds would otherwise make the Fetch a busy loop."""


class GivingWay:
    """Remembers when a connection's parked request was last asked to give way, and asks again no sooner than
    allowed."""

    __slots__ = ("_last_s", "_timer")

    def __init__(self) -> None:
        self._last_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, blocker: Reply, again: Callable[[], None]) -> None:
        """Ask the blocking request to give way now, or call `again` once it may be asked."""
        loop = asyncio.get_running_loop()
        wait_s = self._last_s + GIVE_WAY_EVERY_S - loop.time()
        if wait_s <= 0:
            blocker.give_way()
            if blocker.done:
                self._last_s = loop.time()
        elif self._timer is None:
            self._timer = loop.call_later(wait_s, self._over, again)

    def _over(self, again: Callable[[], None]) -> None:
        self._timer = None
        again()
