"""Unlinks renamed files on another thread when they are due, with one task for each log directory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from functools import partial
from heapq import heappop, heappush

from kpybroker.storage.dirs.directory_names import DELETED
from kpybroker.storage.log.retention import unlink_all
from kpybroker.world import Disk, World

log = logging.getLogger(__name__)


class Garbage:
    """Files and `-delete` directories to unlink, each with its due time in milliseconds of the steady clock."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[tuple[int, str]] = []
        self._sooner = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, due_ms: int, path: str) -> None:
        heappush(self._waiting, (due_ms, path))
        if self._waiting[0][0] == due_ms:
            self._sooner.set()

    def take(self, now_ms: int | None = None) -> list[str]:
        """Remove and return the paths that are due, or all paths if no time is given. The caller unlinks them."""
        due = []
        while self._waiting and (now_ms is None or self._waiting[0][0] <= now_ms):
            due.append(heappop(self._waiting)[1])
        return due

    async def unlink_when_due(self) -> None:
        """Unlink paths until cancelled. If a path cannot be unlinked, that is logged, and the next start tries
        again."""
        while True:
            self._sooner.clear()
            now_ms = self._world.steady_ms()
            due = self.take(now_ms)
            if due:
                await self._world.disk.off_loop(partial(unlink, self._world.disk, due), due[0])
                continue
            wait_ms = self._waiting[0][0] - now_ms if self._waiting else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wait_ms is None else wait_ms / 1000):
                    await self._sooner.wait()


def unlink(disk: Disk, paths: Iterable[str]) -> None:
    """Unlink files, and `-delete` directories with their contents. May wait for the disk."""
    for path in paths:
        try:
            if path.endswith(DELETED):
                unlink_all(disk, [f"{path}/{name}" for name in disk.list(path)])
                disk.rmdir(path)
            else:
                unlink_all(disk, [path])
        except OSError as error:
            log.error("%s cannot be unlinked: %s", path, error)
