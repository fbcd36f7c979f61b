"""Keeps a meter for each entity with a quota. Unused meters are removed, as Kafka removes unused sensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

IDLE_MS = 3_600_000
METERS_MAX = 10_000
"""The most meters in one table. If there are more, the meter that was unused for the longest time is removed. The limit
is needed because clients choose their client ids."""

Key = tuple[str, str, str]
"""The kind of quota, the user and the client id; empty if the quota does not depend on it."""
T = TypeVar("T")


class Meters(Generic[T]):
    """The meters of one type, in the order of their last use."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._meters: OrderedDict[Key, T] = OrderedDict()
        self._used_ms: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._meters)

    def at(self, key: Key, now_ms: int) -> T:
        """The meter of a key, created if needed."""
        meter = self._meters.get(key)
        if meter is None:
            self._forget(now_ms)
            meter = self._meters[key] = self._make()
        self._meters.move_to_end(key)
        self._used_ms[key] = now_ms
        return meter

    def _forget(self, now_ms: int) -> None:
        """Remove meters to make room for one more."""
        while self._meters:
            key = next(iter(self._meters))
            if len(self._meters) < METERS_MAX and now_ms - self._used_ms[key] < IDLE_MS:
                return
            del self._meters[key], self._used_ms[key]
