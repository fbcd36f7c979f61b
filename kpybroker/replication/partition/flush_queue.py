"""The work at the end of a read event: it writes the appended records, and then settles the waiters that are
complete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from kpybroker.stalls import FLUSH, STALL_S, Stalls


class Waiter(Protocol):
    """A response that waits for a flush. `settle` is called after each flush that may have completed it."""

    def settle(self) -> None: ...


class Flushable(Protocol):
    """A partition with appended records to write. Its `flush` does not raise."""

    def flush(self) -> None: ...


class FlushQueue:
    """The partitions of one broker that have records to write, and the waiters to settle."""

    __slots__ = ("dirty", "flushing", "stalls", "woken")

    def __init__(self) -> None:
        self.dirty: list[Flushable] = []
        self.woken: list[Waiter] = []
        self.flushing = False
        """Whether a flush is running, which also writes the records that are appended in the meantime."""
        self.stalls: Stalls | None = None
        """Where long flushes are counted; None if no metrics are served."""

    def count_stalls(self, stalls: Stalls) -> None:
        """Measure flushes from now on."""
        self.stalls = stalls

    def flush(self) -> None:
        """Write each dirty partition, then settle each woken waiter. Repeat this until there are none left.

        If a waiter raises an exception, which is a bug, the other waiters stay queued for the next flush.
        """
        if self.flushing or not (self.dirty or self.woken):
            return
        self.flushing = True
        stalls = self.stalls
        began_s = 0.0 if stalls is None else stalls.clock() - stalls.counted_s
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
            if stalls is not None:
                took_s = stalls.clock() - stalls.counted_s - began_s
                if took_s >= STALL_S:
                    stalls.add(FLUSH, took_s)
