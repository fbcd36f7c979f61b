"""Completes a waiting Fetch early if a request of another kind waits behind it on the same connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kpybroker.call import Reply

GIVE_WAY_EVERY_S = 0.05
"""The minimum interval. Without it, a client that alternates between Fetch and other requests would cause a busy
loop."""


class GivingWay:
    """Completes the waiting requests of one connection early, at most once every GIVE_WAY_EVERY_S."""

    __slots__ = ("_last_s", "_timer")

    def __init__(self) -> None:
        self._last_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, blocker: Reply, again: Callable[[], None]) -> None:
        """Have the blocking request completed early now; if it is too soon for that, call `again` later."""
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
