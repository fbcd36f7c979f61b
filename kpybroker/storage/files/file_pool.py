"""Limits the number of open files of all logs of a broker, by closing files that have not been used recently."""

from __future__ import annotations

import errno
from typing import Protocol

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.world import Disk

ROOM = 8
"""The number of descriptors that must be free before a step that opens several files."""


class Openable(Protocol):
    """The owner of a file in the pool. The pool can close the file at any time, and the owner opens it again."""

    used: bool
    """Set by the owner on every use, and cleared by the pool."""

    @property
    def busy(self) -> bool:
        """Whether a thread is using the file, so that it cannot be closed now."""

    def close_files(self) -> None:
        """Close the file. Never raises, and opens no other file before the descriptor is closed."""


def is_short(error: BaseException | None) -> bool:
    """Whether an error means that no file descriptor is free in the process or the system (EMFILE, ENFILE). The files
    are not damaged in that case."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


class FilePool:
    """The open files, with second-chance eviction. To use a file, its owner only has to assign an attribute."""

    __slots__ = ("_open", "limit")

    def __init__(self, limit: int) -> None:
        assert limit > 0, "at least one file must stay open"
        self.limit = limit
        self._open: dict[Openable, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, owner: Openable) -> None:
        """Add an owner that has just opened its file. If there are too many open files, another one is closed."""
        if len(self._open) >= self.limit:
            self._evict()
        self._open[owner] = None

    def closed(self, owner: Openable) -> None:
        self._open.pop(owner, None)

    def open(self, disk: Disk, path: str, *, create: bool = False) -> int:
        """Open a file, after closing idle files if no descriptor is free. Raises OSError."""
        while True:
            try:
                return disk.open(path, create=create)
            except OSError as error:
                if not is_short(error) or not self._evict():
                    raise

    def require_room(self, disk: Disk) -> None:
        """Check that ROOM descriptors are free. Raises KAFKA_STORAGE_ERROR.

        Called before a step that opens several files and must not fail in the middle.
        """
        while not disk.has_handles(ROOM):
            if not self._evict():
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    "too few file descriptors are free; try again when connections have closed",
                )

    def _evict(self) -> bool:
        for _ in range(2 * len(self._open)):
            owner = next(iter(self._open))
            del self._open[owner]
            if owner.used or owner.busy:
                owner.used = False
                self._open[owner] = None
            else:
                owner.close_files()
                return True
        return False
