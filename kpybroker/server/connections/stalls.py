"""Counts the stalls of the event loop, by what ran meanwhile. Only a node that serves metrics counts them.

Two kinds of work are measured each time: the requests of one read event, and a flush. A read event starts no request
after its first few milliseconds, so the last request caused the stall. Everything else is seen by a timer that is late.
"""

from __future__ import annotations

from collections.abc import Callable

from kpybroker.world.stopwatch import perf_counter

STALL_MS = 10
STALL_S = STALL_MS / 1000
"""From this duration on, it is a stall."""
FLUSH = "flush"
BLOCKED = "blocked"
OTHER = "other"
CAUSES = {
    FLUSH: "appended batches were written, and their responses completed",
    BLOCKED: "the thread did not run: it waited for a CPU, or for a disk outside a flush",
    OTHER: "anything else: compaction and other background work, timers, sending, a request after its first wait, or "
    "many short requests in one turn of the loop",
}
"""The causes that are not the name of an API."""


class Stalls:
    """The number of stalls, and their seconds, by cause."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self._explained_s = 0.0
        self._worst_s = 0.0

    def add(self, cause: str, seconds: float) -> None:
        """Count a stall."""
        self.counts[cause] = self.counts.get(cause, 0) + 1
        self.seconds[cause] = self.seconds.get(cause, 0.0) + seconds
        self._worst_s = max(self._worst_s, seconds)
        self._explained_s += seconds

    def late(self, late_s: float, cpu_s: float) -> None:
        """A timer is late by `late_s`, and the loop's thread has used `cpu_s` of CPU since it was last on time.

        The part that measured stalls do not explain counts as another one. It is BLOCKED only if the thread certainly
        did not run for half of it.
        """
        left_s, self._explained_s = late_s - self._explained_s, 0.0
        self._worst_s = max(self._worst_s, late_s)
        if left_s >= STALL_S:
            self.add(BLOCKED if cpu_s <= left_s / 2 else OTHER, left_s)
            self._explained_s = 0.0

    def take_worst(self) -> float:
        """The longest stall since the last call, in seconds."""
        worst_s, self._worst_s = self._worst_s, 0.0
        return worst_s

    def timed_flush(self, flush: Callable[[], None]) -> Callable[[], None]:
        """`flush`, measured."""

        def timed() -> None:
            began = perf_counter()
            flush()
            took_s = perf_counter() - began
            if took_s >= STALL_S:
                self.add(FLUSH, took_s)

        return timed
