"""Runs long work on the event loop in slices, one in each turn: decompressing batches, and searching by timestamp.
Recovering logs has the same slices, but turns of its own (`broker/log_recovery.py`).

Work is a generator. At each yield, the event loop serves other requests. It yields None, or a function without
arguments that is run on the disk's thread and whose result is sent to the generator.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.world import Disk
from kpybroker.world.loop_turns import LoopTurns

Result = TypeVar("Result")
OffLoop = Callable[[], Any]
Work = Generator[OffLoop | None, Any, Result]

SHORT_AT_ONCE, MIDDLING_AT_ONCE, LONG_AT_ONCE = 4, 2, 2
"""How many short, middling and long works run concurrently. Short works never wait for long ones."""
AT_ONCE = SHORT_AT_ONCE + MIDDLING_AT_ONCE + LONG_AT_ONCE
"""The maximum number of concurrent works. Each may use the window of a decompressor, or all bytes that snappy has
decompressed."""
SHORT_SLICES = 64
"""A work that needs more slices starts again in a middling place. The limit is 16 MB of uncompressed bytes, or 64,000
records."""
MIDDLING_SLICES = 512
"""A work that needs more slices starts again in a long place. The limit is 128 MB of uncompressed bytes, or 512,000
records."""
WAITING_LIMIT = 10_000
"""The maximum number of works that wait for a place of one kind."""


def nothing_open() -> None:
    """Work yields this between two batches, when it uses no decompressor and may give up its place."""


def at_once(work: Work[Result]) -> Result:
    """Run all slices at once on the calling thread, and return the result."""
    try:
        step = next(work)
        while True:
            step = taken(work, step)()
    except StopIteration as finished:
        result: Result = finished.value
        return result


def taken(work: Work[Any], step: OffLoop | None) -> Callable[[], OffLoop | None]:
    """Run a step. Return a function that resumes the work with the step's result or error."""
    try:
        return partial(work.send, None if step is None else step())
    except (KafkaError, OSError) as error:
        return partial(work.throw, error)


class Places:
    """Places for running works, and the queue of works that wait for a place."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def is_free(self) -> bool:
        """Whether a place is free."""
        return self._free > 0

    async def enter(self, deadline: float | None) -> None:
        """Wait for a place until `deadline` of the event loop's clock. Raises REQUEST_TIMED_OUT."""
        if self._free:
            self._free -= 1
            return
        if len(self._waiting) >= WAITING_LIMIT:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{WAITING_LIMIT} requests of this kind are already waiting")
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._waiting.append(place)
        timer = None if deadline is None else loop.call_at(deadline, self._give_up, place)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                with suppress(ValueError):  # `leave` has already removed it in this turn
                    self._waiting.remove(place)
            elif place.exception() is None:  # otherwise it timed out in this turn, without a place
                self.leave()
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _give_up(self, place: asyncio.Future[None]) -> None:
        if not place.done():
            self._waiting.remove(place)
            place.set_exception(
                KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the batches of other requests took all of timeout.ms")
            )

    def leave(self) -> None:
        """Pass the place on to the next work in the queue."""
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1


class SlicedWork:
    """All sliced work of one broker.

    Each work first runs in a short place, where it may use SHORT_SLICES. A work that needs more slices starts again in
    a middling place, where it may use MIDDLING_SLICES, and then in a long place. Therefore a work never waits behind
    longer works. A long work gives up its place between batches. `LongWork` does the same for requests with many
    elements: it shares the turns of the event loop, but its places count elements.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._short = Places(SHORT_AT_ONCE)
        self._middling = Places(MIDDLING_AT_ONCE)
        self._long = Places(LONG_AT_ONCE)
        self._turns = LoopTurns()

    async def run(
        self,
        begin: Callable[[], Work[Result]],
        begun: Work[Result] | None = None,
        step: OffLoop | None = None,
        timeout_ms: int | None = None,
    ) -> Result:
        """Run the work that `begin` creates, one slice at a time, and return its result.

        `begin` may be called several times, so the work must not change its input unless it can continue from there.

        `begun` is a work that has already begun, and `step` is the last step that it has yielded. It is closed and
        started again if it has to wait, because a waiting work must not use memory. Raises the errors of the work, and
        REQUEST_TIMED_OUT if too many works are waiting or no place is free within `timeout_ms`.
        """
        deadline = None if timeout_ms is None else asyncio.get_running_loop().time() + max(timeout_ms, 0) / 1000
        if begun is not None and not self._short.is_free:
            begun.close()
            begun = step = None
        first = begin() if begun is None else begun
        is_over, result = await self._some(first, step, self._short, SHORT_SLICES, deadline)
        if not is_over:
            is_over, result = await self._some(begin(), None, self._middling, MIDDLING_SLICES, deadline)
        return result if is_over else await self._all(begin(), deadline)

    async def _some(
        self, work: Work[Result], step: OffLoop | None, places: Places, slices: int, deadline: float | None
    ) -> tuple[bool, Any]:
        """Run up to `slices` slices of a work. Return whether it has ended, and its result."""
        is_over, told = False, step
        try:
            await places.enter(deadline)
            try:
                for _ in range(slices):
                    is_over, told = await self._slice(work, told)
                    if is_over:
                        break
            finally:
                work.close()
                places.leave()
        finally:
            work.close()
        return is_over, told

    async def _all(self, work: Work[Result], deadline: float | None) -> Result:
        """Run a whole work in a long place."""
        has_place = is_over = False
        told: Any = nothing_open
        try:
            while not is_over:
                if told is nothing_open:
                    if has_place:
                        has_place = False
                        self._long.leave()
                    await self._long.enter(deadline)
                    has_place = True
                is_over, told = await self._slice(work, told)
        finally:
            work.close()
            if has_place:
                self._long.leave()
        result: Result = told
        return result

    async def _slice(self, work: Work[Any], step: OffLoop | None) -> tuple[bool, Any]:
        """Run one slice. Return True and the result, or False and the next step."""
        if step is None or step is nothing_open:
            await self._turns.take()
            go_on: Callable[[], OffLoop | None] = partial(work.send, None)
        else:
            go_on = await self._off_loop(work, step)
        try:
            return False, go_on()
        except StopIteration as finished:
            return True, finished.value

    async def _off_loop(self, work: Work[Any], step: OffLoop) -> Callable[[], OffLoop | None]:
        outcome: list[Callable[[], OffLoop | None]] = []
        await self._disk.off_loop(lambda: outcome.append(taken(work, step)))
        return outcome[0]
