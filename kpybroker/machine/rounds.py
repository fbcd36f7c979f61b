"""Rounds of background work on all keys of a machine, in steps, so that the event loop is never blocked for long."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

LOOKED_AT_A_TICK = 1000


class Round(Generic[K]):
    """Goes through all keys in steps, and repeats this at an interval."""

    def __init__(self, interval_ms: int) -> None:
        self.at_ms: int | None = None
        """When the next step is due; None before the first one."""
        self._interval_ms = interval_ms
        self._left: Iterator[K] | None = None

    def begin_at(self, now_ms: int) -> None:
        """Begin the next round now, unless one is in progress."""
        self.at_ms = now_ms

    def step(self, keys: Mapping[K, Any], now_ms: int) -> Iterator[K]:
        """The keys of this step. The next step of the round is due at once."""
        if self.at_ms is None:
            self.at_ms = now_ms + self._interval_ms
        if now_ms < self.at_ms:
            return
        if self._left is None:
            self._left = iter(list(keys))
        for _ in range(LOOKED_AT_A_TICK):
            found = next(self._left, None)
            if found is None:
                self._left = None
                self.at_ms = now_ms + self._interval_ms
                return
            yield found
