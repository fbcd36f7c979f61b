"""The work at the end of a read event: it writes the appended records, and then settles the waiters that are
complete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class Waiter(Protocol):
    """A response that waits for a flush. `settle` is called after each flush that may have completed it."""

    def settle(self) -> None: ...


class Flushable(Protocol):
    """A partition with appended records to write. Its `flush` does not raise."""

    def flush(self) -> None: ...


class FlushQueue:
    """The partitions of one broker that have records to write, and the waiters to settle."""

    __slots__ = ("dirty", "flushing", "woken")

    def __init__(self) -> None:
        self.dirty: list[Flushable] = []
        self.woken: list[Waiter] = []
        self.flushing = False
        """Whether a flush is running, which also writes the records that are appended in the meantime."""

    def flush(self) -> None:
        """Write each dirty partition, then settle each woken waiter. Repeat this until there are none left.

        If a waiter raises an exception, which is a bug, the other waiters stay queued for the next flush.
        """
        if self.flushing or not (self.dirty or self.woken):
            return
        self.flushing = True
        dirty: Iterator[Flushable] = iter(())
        woken: Iterator[Waiter] = iter(())
        try:
            while self.dirty or self.woken:
                dirty, self.dirty = iter(self.dirty), []
                for partition in dirty:
                    partition.flush()
                woken, self.woken = iter(dict.fromkeys(self.woken)), []
                for waiter in woken:
                    waiter.settle()
        finally:
            self.dirty.extend(dirty)
            self.woken.extend(woken)
            self.flushing = False
