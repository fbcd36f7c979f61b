"""Turns of the loop for requests that ask for much: between two pieces of such work everybody else is served.

However many long requests there are, one turn of the loop does one piece of one of them, in the order in which they
asked; sockets are read and timers run before the next piece. So heartbeats, votes and small requests never wait for
more than a piece, and long requests share what is left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import TypeVar

T = TypeVar("T")

REQUESTS_MAX = 8
"""So many long requests of one broker are taken apart and answered at a time: each may take some 100 MB."""


class LongWork:
    """Of one broker."""

    def __init__(self) -> None:
        self.turns = 0
        """Pieces of work that were let go on."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_due = False
        self._places = REQUESTS_MAX
        self._queue: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Let everybody else have a turn."""
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiting.append(waiter)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._next)
        await waiter

    async def through(self, work: Generator[None, None, T]) -> T:
        """Run a generator to its end, each piece in a turn of its own; what it returns."""
        while True:
            try:
                next(work)
            except StopIteration as end:
                found: T = end.value
                return found
            await self.turn()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """One of REQUESTS_MAX places; those who come later wait for one in their order."""
        if self._places:
            self._places -= 1
        else:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queue.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._give_place()
                raise
        try:
            yield
        finally:
            self._give_place()

    def _give_place(self) -> None:
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._places += 1

    def _next(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self.turns += 1
                waiter.set_result(None)
                break
        self._is_due = bool(self._waiting)
        if self._is_due:
            asyncio.get_running_loop().call_soon(self._next)
