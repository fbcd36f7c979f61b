"""Schedules requests with many elements on the event loop, so that all other requests are served between two pieces.

Regardless of the number of long requests, one turn of the loop runs one piece of one of them, in the order in which
they queued; sockets are read and timers run before the next piece. So heartbeats, votes and small requests never wait
for more than one piece, and long requests share the remaining time.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from kpybroker.errors import MalformedFrame
from kpybroker.world.loop_turns import LoopTurns

T = TypeVar("T")

REQUESTS_MAX = 8
"""The most long requests that are parsed and executed at a time."""
ELEMENTS_MAX = 300_000
"""The most elements of these requests together. A Fetch of 250,000 partitions takes about 100 MB."""
PARKED_MAX = 500_000
"""The most elements of requests that wait without a place: Fetches of many partitions wait for records (about 200 MB),
other requests for the controller."""
QUEUE_MAX = 1000
"""The most long requests that wait for a place."""
QUEUE_MAX_BYTES = 64 * 1024 * 1024
"""The default limit on the bytes of the frames that wait."""


class Asked(NamedTuple):
    """A request that waits for a place, with the number of its elements and the bytes that it holds while it waits."""

    elements: int
    frame_bytes: int


class LongWork:
    """The long requests of one broker."""

    def __init__(self) -> None:
        self._turns = LoopTurns()
        self._places = REQUESTS_MAX
        self._elements = ELEMENTS_MAX
        """The number of elements that are still available."""
        self._queue: OrderedDict[asyncio.Future[None], Asked] = OrderedDict()
        self._queue_max_bytes = QUEUE_MAX_BYTES
        self.queued_bytes = 0
        """The bytes of the frames that wait."""
        self._on_busy: Callable[[bool], None] | None = None
        self.parked = 0
        """The elements of requests that wait without holding a place."""
        self._held: dict[asyncio.Task[Any] | None, Asked] = {}
        """The requests that have a place, by task."""

    @property
    def turns(self) -> int:
        """The number of pieces of work that have run."""
        return self._turns.taken

    @property
    def queued(self) -> int:
        """The number of requests that wait for a place."""
        return len(self._queue)

    def park(self, elements: int) -> bool:
        """Count these elements as waiting until `unpark`. Returns False if this would exceed PARKED_MAX."""
        if self.parked + elements > PARKED_MAX:
            return False
        self.parked += elements
        return True

    def unpark(self, elements: int) -> None:
        """Stop counting these elements as waiting."""
        self.parked -= elements

    def limit_queue(self, max_bytes: int) -> None:
        """Set the limit on the bytes of waiting frames. A single frame may exceed it."""
        self._queue_max_bytes = max_bytes

    def on_busy(self, tell: Callable[[bool], None]) -> None:
        """Set a function: `tell(True)` is called when the first place is taken, `tell(False)` when the last is
        released."""
        self._on_busy = tell

    async def turn(self) -> None:
        """Wait for the next turn, before which everything else is served."""
        await self._turns.take()

    async def through(self, work: Generator[None, None, T]) -> T:
        """Run a generator to its end, with each piece in a separate turn. Returns its result."""
        while True:
            try:
                next(work)
            except StopIteration as end:
                found: T = end.value
                return found
            await self.turn()

    @asynccontextmanager
    async def place(self, elements: int = 1, frame_bytes: int = 0) -> AsyncIterator[None]:
        """Hold one of REQUESTS_MAX places for a request of at most `elements`; requests receive places in the order of
        arrival.

        `frame_bytes`: the receive memory that the request holds while it waits. Raises MalformedFrame if too many wait:
        the largest of the waiting requests is refused, or the newest of several equally large ones.
        """
        asked = Asked(min(elements, ELEMENTS_MAX), frame_bytes)
        task = asyncio.current_task()
        await self._enter(task, asked)
        try:
            yield
        finally:
            if self._held.pop(task, None) is not None:
                self._give_place(asked)

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[None]:
        """Release the place while a request waits for another node. Afterwards, the request waits for a place again.

        During this time, its elements count as parked. If too many elements are already parked, the request keeps its
        place. Does nothing for a request without a place.
        """
        task = asyncio.current_task()
        asked = self._held.get(task)
        if asked is None or not self.park(asked.elements):
            yield
            return
        del self._held[task]
        self._give_place(asked)
        try:
            yield
            await self._enter(task, asked._replace(frame_bytes=0))
        finally:
            self.unpark(asked.elements)

    async def _enter(self, task: asyncio.Task[Any] | None, asked: Asked) -> None:
        if not self._queue and self._fits(asked):
            self._take(asked)
        else:
            await self._wait(asked)
        self._held[task] = asked

    async def _wait(self, asked: Asked) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue[waiter] = asked
        self.queued_bytes += asked.frame_bytes
        while len(self._queue) > QUEUE_MAX or (self.queued_bytes > self._queue_max_bytes and len(self._queue) > 1):
            largest = max(reversed(self._queue), key=lambda each: self._queue[each].frame_bytes)
            self._leave_queue(largest)
            if not largest.done():
                largest.set_exception(MalformedFrame("too many requests of many elements wait for their turn"))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in self._queue:
                self._leave_queue(waiter)
                self._fill_places()
            elif not waiter.cancelled() and waiter.exception() is None:
                self._give_place(asked)
            raise

    def _fits(self, asked: Asked) -> bool:
        return self._places > 0 and asked.elements <= self._elements

    def _take(self, asked: Asked) -> None:
        if self._places == REQUESTS_MAX and self._on_busy is not None:
            self._on_busy(True)
        self._places -= 1
        self._elements -= asked.elements

    def _give_place(self, asked: Asked) -> None:
        self._places += 1
        self._elements += asked.elements
        self._fill_places()
        if self._places == REQUESTS_MAX and self._on_busy is not None:
            self._on_busy(False)

    def _fill_places(self) -> None:
        while self._queue:
            waiter, asked = next(iter(self._queue.items()))
            if not waiter.done():
                if not self._fits(asked):
                    return
                self._take(asked)
                waiter.set_result(None)
            self._leave_queue(waiter)

    def _leave_queue(self, waiter: asyncio.Future[None]) -> None:
        self.queued_bytes -= self._queue.pop(waiter).frame_bytes
