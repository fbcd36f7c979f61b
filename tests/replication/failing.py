"""A simulated disk on which chosen calls fail: one call, several in a row, or all from a certain call on."""

from __future__ import annotations

from typing import Any

from kpybroker.sim.world.storage import Storage
from tests.storage.compacting import VirtualWorld

CHANGES = frozenset({"open", "pwritev", "truncate", "mkdir", "rename", "unlink", "sync_blocking"})


class FailingDisk:
    """Forwards calls to a SimDisk. The calls that `fail` names are counted, and may fail."""

    def __init__(self, disk: Any) -> None:
        self._disk = disk
        self._calls: frozenset[str] = frozenset()
        self._numbers = range(0)
        self._code = 0
        self.count = 0

    def fail(self, calls: frozenset[str], code: int, numbers: range) -> None:
        """From now on, count `calls`, and let those with the given numbers fail with the error `code`."""
        self._calls, self._code, self._numbers, self.count = calls, code, numbers, 0

    def mend(self) -> None:
        self._calls = frozenset()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._disk, name)
        if name not in self._calls:
            return found

        def called(*given: Any, **named: Any) -> Any:
            self.count += 1
            if self.count - 1 not in self._numbers:
                return found(*given, **named)
            raise OSError(self._code, "the test lets this call fail")

        return called


class FailingWorld(VirtualWorld):
    """A World with a FailingDisk."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.failing = FailingDisk(self.disk)
        self.disk = self.failing  # type: ignore[assignment]
