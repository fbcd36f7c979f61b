"""Closes the logs of a directory when the broker stops. Several logs are written and synced concurrently."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from kpybroker.errors import Damage
from kpybroker.storage.log.log import Log
from kpybroker.world import World

log = logging.getLogger(__name__)

AT_ONCE = 16
"""How many logs of a directory are synced concurrently."""
STOP_MAX_S = 20.0
"""After this time, the broker stops without syncing the remaining logs of a directory, so that the next start has to
recover them."""
SAID_EVERY_S = 5.0
"""How often progress is logged during a long stop."""


class Closing:
    """The closing of all logs in one directory."""

    def __init__(self, world: World, path: str, logs: Sequence[Log]) -> None:
        self._world = world
        self._path = path
        self._count = len(logs)
        self._waiting = list(reversed(logs))
        self._under_way: dict[Log, None] = {}
        self._closed = 0
        self._said_ms = world.steady_ms()
        self._is_whole = True

    async def run(self) -> bool:
        """Write, sync and close all logs. Return whether all were closed cleanly. Never raises."""
        workers = [asyncio.ensure_future(self._work()) for _ in range(min(AT_ONCE, self._count))]
        if workers:
            await asyncio.wait(workers, timeout=STOP_MAX_S)
        if self._closed < self._count:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            self._leave()
        return self._is_whole

    async def _work(self) -> None:
        while self._waiting:
            one = self._waiting.pop()
            self._under_way[one] = None
            await self._close(one)
            del self._under_way[one]
            self._closed += 1
            self._say()

    async def _close(self, one: Log) -> None:
        try:
            await one.until_written()
            self._is_whole &= one.offline is None
            await one.close_soon()
        except Damage as damage:
            self._not_clean(one, damage)

    def _not_clean(self, one: Log, damage: Damage) -> None:
        log.error("%s was not closed cleanly: %s", one.directory, damage)
        self._is_whole = False

    def _say(self) -> None:
        now_ms = self._world.steady_ms()
        if now_ms - self._said_ms >= SAID_EVERY_S * 1000:
            self._said_ms = now_ms
            log.info("%s: the stop has synced %d of %d partitions", self._path, self._closed, self._count)

    def _leave(self) -> None:
        """Write the remaining logs without syncing them, because the disk is too slow."""
        self._is_whole = False
        left = [*self._under_way, *reversed(self._waiting)]
        log.warning(
            "%s: %d of %d partitions are not synced after %.0f s, and the stop continues without them",
            self._path,
            len(left),
            self._count,
            STOP_MAX_S,
        )
        for one in left:
            if one.behind is not None:  # a thread is still writing batches that were not acknowledged
                one.drop_files()
                continue
            try:
                one.close(sync=False)
            except Damage as damage:
                self._not_clean(one, damage)
