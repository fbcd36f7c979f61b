"""Splits long work into turns of the event loop, so that everything else is served between two turns."""

from __future__ import annotations

import asyncio
from collections import deque


class LoopTurns:
    """Lets one waiter continue in each iteration of the loop, in the order in which they began to wait.

    Regardless of the number of waiters, sockets are read and timers run before the next one continues.
    """

    def __init__(self) -> None:
        self.taken = 0
        """The number of turns that were taken."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_scheduled = False

    async def take(self) -> None:
        """Wait for a turn."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiter)
        if not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._next)
        await waiter

    def _next(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self.taken += 1
                waiter.set_result(None)
                break
        self._is_scheduled = bool(self._waiting)
        if self._is_scheduled:
            asyncio.get_running_loop().call_soon(self._next)
