"""Counts the stalls of the event loop, by what ran meanwhile. Only a node that serves metrics counts them.

Three kinds of work are measured each time: the requests of one read event, a flush, and the application of a metadata
change. A read event starts no request after its first few milliseconds, so the last request caused the stall.
Everything else is seen by a timer that is late.

Measured work may contain other measured work: a flush completes a response, and then the next request of its connection
runs. The outer work is only what the stalls counted inside it leave: it is measured as the difference of
`clock() - counted_s` between its end and its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

STALL_MS = 10
STALL_S = STALL_MS / 1000
"""From this duration on, it is a stall."""
FLUSH = "flush"
METADATA = "metadata"
BLOCKED = "blocked"
OTHER = "other"
CAUSES = {
    FLUSH: "appended batches were written, and their responses completed",
    METADATA: "a change of the metadata was applied: logs were opened, deleted or given a new leader",
    BLOCKED: "the thread did not run: it waited for a CPU, or for a disk outside a flush",
    OTHER: "anything else: compaction and other background work, timers, sending, a request after its first wait, or "
    "many short requests in one turn of the loop",
}
"""The causes that are not the name of an API."""


class Stalls:
    """The number of stalls, and their seconds, by cause. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.counts: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.counted_s = 0.0
        """The seconds of all stalls."""
        self._seen_s = 0.0
        """`counted_s` when the timer was last late or on time."""
        self._worst_s = 0.0

    def add(self, cause: str, seconds: float) -> None:
        """Count a stall."""
        self.counts[cause] = self.counts.get(cause, 0) + 1
        self.seconds[cause] = self.seconds.get(cause, 0.0) + seconds
        self._worst_s = max(self._worst_s, seconds)
        self.counted_s += seconds

    @contextmanager
    def measured(self, cause: str) -> Iterator[None]:
        """Count a stall if the block takes so long, without the stalls inside it."""
        began_s = self.clock() - self.counted_s
        try:
            yield
        finally:
            took_s = self.clock() - self.counted_s - began_s
            if took_s >= STALL_S:
                self.add(cause, took_s)

    def late(self, late_s: float, cpu_s: float) -> None:
        """A timer is late by `late_s`, and the loop's thread has used `cpu_s` of CPU since it was last on time.

        The part that measured stalls do not explain counts as another one. It is BLOCKED only if the thread certainly
        did not run for half of it.
        """
        left_s = late_s - (self.counted_s - self._seen_s)
        self._worst_s = max(self._worst_s, late_s)
        if left_s >= STALL_S:
            self.add(BLOCKED if cpu_s <= left_s / 2 else OTHER, left_s)
        self._seen_s = self.counted_s

    def take_worst(self) -> float:
        """The longest stall since the last call, in seconds."""
        worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s
