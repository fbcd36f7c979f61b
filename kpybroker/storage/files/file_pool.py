"""A limit on open files, shared by all logs of a broker: the least recently used files are closed."""

from __future__ import annotations

import errno
from typing import Protocol

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.world import Disk

ROOM = 8
"""The number of free descriptors that a step which opens several files needs before it changes anything."""


class Openable(Protocol):
    """A file in the pool: it can be closed at any time and reopens by itself."""

    used: bool
    """Set by its owner on every use, cleared by the pool."""

    @property
    def busy(self) -> bool:
        """Whether a thread is using the file, so that it cannot be closed now."""

    def close_files(self) -> None:
        """Close the file. Never raises, and opens nothing before it has closed its own descriptor."""


def is_short(error: BaseException | None) -> bool:
    """Whether the error means that the process or the system is out of descriptors (EMFILE, ENFILE); the files
    themselves are sound."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


class FilePool:
    """Second-chance eviction: a use costs its owner only the assignment of an attribute."""

    __slots__ = ("_open", "limit")

    def __init__(self, limit: int) -> None:
        assert limit > 0, "at least one file must stay open"
        self.limit = limit
        self._open: dict[Openable, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, owner: Openable) -> None:
        """`owner` has just opened its file; other files may be closed for it, but not this one."""
        if len(self._open) >= self.limit:
            self._evict()
        self._open[owner] = None

    def closed(self, owner: Openable) -> None:
        self._open.pop(owner, None)

    def open(self, disk: Disk, path: str, *, create: bool = False) -> int:
        """Open a file; if no descriptor is left, close idle files first. Raises OSError."""
        while True:
            try:
                return disk.open(path, create=create)
            except OSError as error:
                if not is_short(error) or not self._evict():
                    raise

    def require_room(self, disk: Disk) -> None:
        """Called before a step that opens several files and must not stop half way. Raises KAFKA_STORAGE_ERROR."""
        while not disk.has_handles(ROOM):
            if not self._evict():
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, "file descriptors are short; try again when connections have closed"
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
