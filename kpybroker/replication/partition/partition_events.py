"""The events that the partitions of a broker report to its other parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

P = TypeVar("P")


def _ignore(partition: object) -> None:
    """The default: no subscriber."""


class PartitionEvents(Generic[P]):
    """Callbacks and counters. propose: sends the in-sync set that a partition proposes to the controller."""

    __slots__ = ("isr_expands", "isr_shrinks", "propose", "written")

    def __init__(self, propose: Callable[[P], None] = _ignore) -> None:
        self.propose = propose
        self.written: Callable[[P], None] = _ignore
        self.isr_shrinks = self.isr_expands = 0
        """How often the in-sync set of a partition led here became smaller, or larger."""

    def on_written(self, callback: Callable[[P], None]) -> None:
        """Call back when a thread has written a partition: a follower may fetch it again."""
        self.written = callback

    def isr_changed(self, before: int, after: int) -> None:
        """An in-sync set had `before` members and has `after`."""
        self.isr_shrinks += after < before
        self.isr_expands += after > before
