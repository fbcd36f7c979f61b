"""The work at the end of a read event: write the appended records, then settle the waiters that this completes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class Waiter(Protocol):
    """`settle` is called after each flush that may have completed it."""

    def settle(self) -> None: ...


class Flushable(Protocol):
    """A partition with appended records to write. Its `flush` does not raise."""

    def flush(self) -> None: ...


class FlushQueue:
    """The partitions to write and the waiters to settle, of one broker."""

    __slots__ = ("dirty", "flushing", "woken")

    def __init__(self) -> None:
        self.dirty: list[Flushable] = []
        self.woken: list[Waiter] = []
        self.flushing = False
        """A flush is running; it also writes what is appended meanwhile."""

    def flush(self) -> None:
        """Write each dirty partition once, then settle each woken waiter once, until neither is left.

        If a waiter raises (a bug), the others stay queued for the next flush.
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
