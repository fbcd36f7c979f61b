"""A limit on open files, shared by all logs of a directory: the ones not used lately are closed."""

from __future__ import annotations

from typing import Protocol


class Openable(Protocol):
    """What the pool keeps open: it can be closed at any time and opens again by itself."""

    used: bool
    """Set by its owner on every use, cleared by the pool."""

    @property
    def busy(self) -> bool:
        """A thread is using the file: it cannot be closed now."""

    def close_files(self) -> None: ...


class FilePool:
    """Second-chance eviction: a use costs its owner one attribute, not a call."""

    __slots__ = ("_open", "limit")

    def __init__(self, limit: int) -> None:
        assert limit > 0, "at least one file must stay open"
        self.limit = limit
        self._open: dict[Openable, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, owner: Openable) -> None:
        """`owner` has just opened its file; others may be closed for it, it will not."""
        if len(self._open) >= self.limit:
            self._evict()
        self._open[owner] = None

    def closed(self, owner: Openable) -> None:
        self._open.pop(owner, None)

    def make_room(self) -> bool:
        """The process has no handle left: close a file; False when there is none to close."""
        return self._evict()

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
