"""A simulated disk on which one chosen operation, and possibly later ones, fail."""

from __future__ import annotations

import errno
from random import Random

from kpybroker.sim.world.disk import SimDisk
from kpybroker.sim.world.storage import Storage
from tests.storage.compacting import VirtualWorld

HOW = ("once", "all", "changes")


class FailingDisk(SimDisk):
    """A disk on which operation number `fails_at` fails. `how` is "once" if only that operation fails. Otherwise its
    directory /x/y has failed: all later operations below it fail ("all"), or all later changes ("changes")."""

    fails_at, error, how = -1, errno.EIO, "once"
    count = 0
    bad = "/no directory"

    def _try(self, path: str, *, changes: bool = False) -> None:
        if self.count == self.fails_at and self.how != "once":
            self.bad = "/".join(path.split("/")[:3])
        if self.count == self.fails_at or (path.startswith(self.bad) and (changes or self.how == "all")):
            self.count += 1
            raise OSError(self.error, "the disk has failed", path)
        self.count += 1

    def _change(self, path: str, *, by_thread: bool = False) -> None:
        self._look()
        self._try(path, changes=True)
        super()._change(path, by_thread=by_thread)

    def list(self, path: str) -> list[str]:
        self._try(path)
        return super().list(path)

    def open(self, path: str, *, create: bool = False) -> int:
        if create or self.exists(path):
            self._try(path)
        return super().open(path, create=create)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        self._try(self._opened[handle].path)
        return super().pread(handle, size, offset)


class FailingWorld(VirtualWorld):
    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.disk: FailingDisk = FailingDisk(storage, self.loop, self.owner, 1, Random(1), self.wall_ms)
