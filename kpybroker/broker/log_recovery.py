"""Recovers the logs of a broker that was killed, before the broker hosts their partitions.

Everything else that the loop has to do is done between two slices of the work: the probes are answered, and a
controller on the same node votes and leads. Several logs are recovered at once, so that the disk reads one while
another is checked. After a clean shutdown there is nothing to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from kpybroker.storage.log.slices import OffLoop, Work, taken
from kpybroker.tasks import begin
from kpybroker.world import World
from kpybroker.world.loop_turns import LoopTurns

log = logging.getLogger(__name__)

AT_ONCE = 4
"""How many logs are recovered at a time. One is checked, the others wait for the disk."""
SLICE_MS = 10
"""After this time, the loop does its other work."""
SAID_EVERY_MS = 5000
"""How often progress is logged."""


class LogRecovery:
    """The recovery of all logs, at the start of a broker. Call `begin` once, and `close` before the logs are closed."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._turns = LoopTurns()
        self._works: Iterator[tuple[str, Work[None]]] = iter(())
        self._count = self._done = 0
        self._slice_ends_ms = self._began_ms = self._said_ms = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._ended: asyncio.Future[None] | None = None
        self._is_closing = False
        self._on_end: Callable[[], None] = lambda: None

    @property
    def is_running(self) -> bool:
        """Whether there are logs that still have to be recovered."""
        return self._ended is not None and not self._ended.done()

    def begin(
        self, works: Sequence[tuple[str, Work[None]]], on_end: Callable[[], None], on_failure: Callable[[str], None]
    ) -> None:
        """Recover logs: each work opens one, in slices, and comes with the path of its directory.

        If this takes longer than a slice, it goes on in tasks: `is_running` is true then, and `on_end` is called at the
        end. `on_failure` is called with a bug.
        """
        self._works, self._count, self._on_end = iter(works), len(works), on_end
        self._began_ms = self._said_ms = self._world.steady_ms()
        self._slice_ends_ms = self._began_ms + SLICE_MS
        for path, work in self._works:
            is_over, step = self._slice(work, partial(next, work))
            if not is_over:
                self._ended = asyncio.get_running_loop().create_future()
                tasks = [self._recover(path, work, step), *(self._recover_more() for _ in range(AT_ONCE - 1))]
                self._tasks = [begin(each, "the recovery of logs", on_failure) for each in tasks]
                return

    async def wait(self, failed: asyncio.Future[str]) -> None:
        """Return when the recovery has ended, or the node has failed."""
        if self._ended is not None:
            either: list[asyncio.Future[Any]] = [self._ended, failed]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """End the recovery after the slices in progress. The remaining logs are left as they are."""
        self._is_closing = True
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _recover(self, path: str, work: Work[None], step: OffLoop | None) -> None:
        """Go on with a work that has yielded `step`, and then with others."""
        await self._finish(path, work, step)
        await self._recover_more()

    async def _recover_more(self) -> None:
        for path, work in self._works:
            if self._is_closing:
                return
            await self._finish(path, work, None)
        if self._done == self._count and self.is_running and not self._is_closing:
            assert self._ended is not None
            self._ended.set_result(None)
            if self._began_ms != self._said_ms:
                log.warning("recovered %d logs in %d ms", self._count, self._world.steady_ms() - self._began_ms)
            self._on_end()

    async def _finish(self, path: str, work: Work[None], step: OffLoop | None) -> None:
        is_over = False
        try:
            while not is_over and not self._is_closing:
                go_on = await (self._wait(work) if step is None else self._read(path, work, step))
                is_over, step = self._slice(work, go_on)
        finally:
            work.close()

    async def _wait(self, work: Work[None]) -> Callable[[], OffLoop | None]:
        """Wait for a slice of time, unless the present one has not ended."""
        if self._world.steady_ms() >= self._slice_ends_ms:
            await self._turns.take()
            now_ms = self._world.steady_ms()
            self._slice_ends_ms = now_ms + SLICE_MS
            if now_ms - self._said_ms >= SAID_EVERY_MS:
                self._said_ms = now_ms
                log.warning("recovering logs after an unclean shutdown: %d of %d are done", self._done, self._count)
        return partial(next, work)

    async def _read(self, path: str, work: Work[None], step: OffLoop) -> Callable[[], OffLoop | None]:
        """Run a step on the disk's thread."""
        outcome: list[Callable[[], OffLoop | None]] = []
        await self._world.disk.off_loop(lambda: outcome.append(taken(work, step)), path)
        return outcome[0]

    def _slice(self, work: Work[None], go_on: Callable[[], OffLoop | None]) -> tuple[bool, OffLoop | None]:
        """Run a work until the slice ends or the work needs the disk's thread. Return whether it is over, and its last
        step."""
        try:
            while (step := go_on()) is None and self._world.steady_ms() < self._slice_ends_ms:
                go_on = partial(next, work)
        except StopIteration:
            self._done += 1
            return True, None
        return False, step
