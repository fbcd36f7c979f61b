"""Timers without a task for each one: a single heap, whose entries are examined only when they are due.

Moving a deadline to a later time, as every heartbeat does, costs one assignment: when the old entry in the heap is due,
it is too early, and is pushed again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from kpybroker.groups.ground.step import Step

SWEEP_FROM = 1024


class Timer:
    """One deadline; `fire(step)` is called once when it has passed."""

    __slots__ = ("at_ms", "fire", "queued_ms")

    def __init__(self, fire: Callable[[Step], None]) -> None:
        self.fire = fire
        self.at_ms: int | None = None
        self.queued_ms: int | None = None

    def cancel(self) -> None:
        self.at_ms = None

    def then(self, fire: Callable[[Step], None]) -> None:
        """Set the function to call when the deadline has passed."""
        self.fire = fire


class Timers:
    """All deadlines of one machine. Cancelled entries are removed when they outnumber the others."""

    __slots__ = ("_heap", "_sequence", "_sweep_at")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._sequence = 0
        self._sweep_at = SWEEP_FROM

    def clear(self) -> None:
        """Remove all timers; they cannot be set again."""
        self._heap.clear()

    def set(self, timer: Timer, at_ms: int) -> None:
        """Let `timer` fire at `at_ms`, replacing any earlier setting."""
        timer.at_ms = at_ms
        if timer.queued_ms is None or at_ms < timer.queued_ms:
            self._push(timer, at_ms)

    def _push(self, timer: Timer, at_ms: int) -> None:
        timer.queued_ms = at_ms
        self._sequence += 1
        heapq.heappush(self._heap, (at_ms, self._sequence, timer))
        if len(self._heap) >= self._sweep_at:
            self._sweep()

    def _sweep(self) -> None:
        live = []
        for entry in self._heap:
            at_ms, _, timer = entry
            if timer.queued_ms != at_ms:
                continue
            if timer.at_ms is None:
                timer.queued_ms = None
            else:
                live.append(entry)
        heapq.heapify(live)
        self._heap[:] = live
        self._sweep_at = max(SWEEP_FROM, 2 * len(live))

    def __len__(self) -> int:
        return len(self._heap)

    def deadline_ms(self) -> int | None:
        """When `fire_due` should be called next. The time may be too early, but never too late."""
        heap = self._heap
        while heap and (heap[0][2].at_ms is None or heap[0][2].queued_ms != heap[0][0]):
            at_ms, _, timer = heapq.heappop(heap)
            if timer.queued_ms == at_ms:
                timer.queued_ms = None
        return heap[0][0] if heap else None

    def fire_due(self, step: Step, limit: int, limit_bytes: int) -> None:
        """Fire due timers until `limit` timers have fired or `limit_bytes` bytes have been written. The others stay
        due."""
        fired = 0
        now_ms = step.now_ms
        heap = self._heap
        while heap and heap[0][0] <= now_ms and fired < limit and step.size_bytes < limit_bytes:
            at_ms, _, timer = heapq.heappop(heap)
            if timer.queued_ms != at_ms:
                continue
            timer.queued_ms = None
            if timer.at_ms is None:
                continue
            if timer.at_ms > now_ms:
                self._push(timer, timer.at_ms)
                continue
            timer.at_ms = None
            timer.fire(step)
            fired += 1
