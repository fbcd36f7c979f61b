"""Long work on the loop, one slice of it in each turn: batches to be opened, records to be looked for by their time.

Work is a generator: wherever it yields, others have their turn. Yields None, or a function without arguments that is to
run on the disk's thread, whose result it gets back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeVar

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.world import Disk

Result = TypeVar("Result")
OffLoop = Callable[[], Any]
Work = Generator[OffLoop | None, Any, Result]

AT_ONCE = 8
"""Works that have slices in turn: each may hold a decompressor's window."""
WAITING_LIMIT = 10_000
"""Works that wait until it is their turn to begin."""


def at_once(work: Work[Result]) -> Result:
    """All slices, one behind the other, on the caller: where nobody else waits."""
    try:
        step = next(work)
        while True:
            step = _go_on(work, step)()
    except StopIteration as finished:
        result: Result = finished.value
        return result


def _go_on(work: Work[Any], step: OffLoop | None) -> Callable[[], OffLoop | None]:
    """How work goes on: with what its last step has returned, or raised."""
    try:
        return partial(work.send, None if step is None else step())
    except (KafkaError, OSError) as error:
        return partial(work.throw, error)


class SlicedWork:
    """All long work of one broker."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._active = 0
        self._entering: deque[asyncio.Future[None]] = deque()
        self._slices: deque[asyncio.Future[None]] = deque()
        self._called = False

    async def run(self, work: Work[Result], step: OffLoop | None = None) -> Result:
        """Do all of it, a slice at a time; `step` is what it has yielded last, where it has begun.

        Raises what it raises; REQUEST_TIMED_OUT where too much is waiting.
        """
        await self._enter()
        try:
            while True:
                if step is not None:
                    go_on = await self._off_loop(work, step)
                else:
                    await self._turn()
                    go_on = partial(work.send, None)
                try:
                    step = go_on()
                except StopIteration as finished:
                    result: Result = finished.value
                    return result
        finally:
            work.close()
            self._leave()

    async def _enter(self) -> None:
        if self._active < AT_ONCE:
            self._active += 1
            return
        if len(self._entering) >= WAITING_LIMIT:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{WAITING_LIMIT} requests like this are waiting")
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._entering.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                self._entering.remove(place)
            else:
                self._leave()
            raise

    def _leave(self) -> None:
        """Who comes next has the place of who goes."""
        while self._entering:
            place = self._entering.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._active -= 1

    async def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._slices.append(turn)
        if not self._called:
            self._called = True
            loop.call_soon(self._next)
        await turn

    def _next(self) -> None:
        while self._slices:
            turn = self._slices.popleft()
            if not turn.done():
                turn.set_result(None)
                break
        self._called = bool(self._slices)
        if self._called:
            asyncio.get_running_loop().call_soon(self._next)

    async def _off_loop(self, work: Work[Any], step: OffLoop) -> Callable[[], OffLoop | None]:
        outcome: list[Callable[[], OffLoop | None]] = []
        await self._disk.off_loop(lambda: outcome.append(_go_on(work, step)))
        return outcome[0]
