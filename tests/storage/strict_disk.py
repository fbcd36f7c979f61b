"""A portable disk over a file system that ignores case and refuses to rename or delete open files, as Windows does.

On Windows it is the real disk.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

from kpybroker.world.portable_disk import PortableDisk
from kpybroker.world.real import RealDisk, RealWorld
from tests.storage.folding import found


def open_below(path: str) -> bool:
    """Whether this process has the file open, or a file in the directory, through whatever code."""
    named = [Path(path), *Path(path).rglob("*")] if os.path.exists(path) else []
    there = {(about.st_dev, about.st_ino) for about in (each.stat() for each in named if each.is_file())}
    for name in os.listdir("/dev/fd"):
        try:
            about = os.fstat(int(name))
        except OSError:  # the descriptor with which the names were read
            continue
        if (about.st_dev, about.st_ino) in there:
            return True
    return False


if sys.platform == "win32":
    StrictDisk = RealDisk
else:

    class StrictDisk(PortableDisk):
        """Raises PermissionError where Windows does."""

        def _native(self, path: str) -> str:
            return found(path)

        def _refuse_open(self, path: str) -> None:
            if open_below(self._native(path)):
                raise PermissionError(errno.EACCES, "the file is open", path)

        def _rename(self, old: str, new: str) -> None:
            self._refuse_open(old)
            self._refuse_open(new)
            super()._rename(old, new)

        def _unlink(self, path: str) -> None:
            self._refuse_open(path)
            super()._unlink(path)


class StrictWorld(RealWorld):
    """A real World with a strict disk."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(seed)
        self.disk = StrictDisk()
