"""The clock of the brokers of a test cluster, which a test can advance."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from datetime import timedelta

from kpybroker.testing.node import ClusterNode, Turn

STEPS_MAX = 200
"""Into how many steps an advance is divided at most. Each step ends when something expires, unless the steps would be
too many; then what expires within a step expires at its end."""
AHEAD_MAX = timedelta(days=36_600)
"""The most that a clock can be ahead: a century."""
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_MS = timedelta(milliseconds=1)
_SPAN = re.compile(r"(?:\d{1,12}(?:ms|[smhdw]))+")
_PART = re.compile(r"(\d+)(ms|[smhdw])")


class Clock:
    """The clock by which the brokers of a cluster let sessions, transactions, locks, offsets and records expire.

    Clients, and what brokers expect of each other, keep to real time.
    """

    def __init__(self, nodes: Callable[[], Collection[ClusterNode]], turn: Turn) -> None:
        """`nodes` returns all brokers, also those that are stopped; `turn` is held while they are told something."""
        self._nodes = nodes
        self._turn = turn
        self._ahead_ms = 0

    def __repr__(self) -> str:
        return f"<clock of brokers, {self.ahead} ahead>"

    @property
    def ahead(self) -> timedelta:
        """The time by which the clock has been advanced in all."""
        return timedelta(milliseconds=self._ahead_ms)

    @property
    def ahead_ms(self) -> int:
        """The same in milliseconds."""
        return self._ahead_ms

    def advance(self, by: str | timedelta) -> None:
        """Advance the clock of all brokers, and return when they have done what was due, in order of time.

        Members of groups whose sessions have ended leave, transactions time out, locks of share groups are released,
        and unused offsets and transactional ids expire. After that, retention deletes records, and logs are compacted.

        `by`: a time span, such as "45s", "1h30m", "7d", or a timedelta. Raises ValueError; RuntimeError if a broker is
        paused or has ended by itself, or if none is running.
        """
        span_ms = _milliseconds(by)
        nodes = self._nodes()
        with self._turn:
            self._advance(nodes, by, span_ms)

    def _advance(self, running: Collection[ClusterNode], by: str | timedelta, left_ms: int) -> None:
        if self._ahead_ms + left_ms > AHEAD_MAX // _MS:
            raise ValueError(f"{by} is too much: the clock can be at most {AHEAD_MAX.days} days ahead in all")
        nodes = [node for node in running if node.is_running or node.ended() is not None]
        if not nodes:
            raise RuntimeError("no broker is running, so nothing can expire; start the brokers first")
        grain_ms = max(left_ms // STEPS_MAX, 1)
        step_ms = 0  # the first command only asks what is next
        while True:
            answers = [node.command({"do": "advance", "ms": step_ms}) for node in nodes]
            left_ms -= step_ms
            self._ahead_ms += step_ms
            if left_ms == 0:
                break
            next_ms = min((each["next_ms"] for each in answers if each["next_ms"] is not None), default=left_ms)
            step_ms = min(max(next_ms, grain_ms), left_ms)
        for node in nodes:
            node.command({"do": "retain and clean"})


def _milliseconds(by: str | timedelta) -> int:
    if isinstance(by, timedelta):
        span_ms = by // _MS
    elif isinstance(by, str) and _SPAN.fullmatch(by):
        span_ms = sum(int(count) * _UNIT_MS[unit] for count, unit in _PART.findall(by))
    else:
        raise ValueError(f"cannot read the time span {by!r}: write for example 45s, 1h30m or 7d")
    if span_ms <= 0:
        raise ValueError(f"the clock cannot be advanced by {by}: it only moves forward")
    return span_ms
