"""The events that the partitions of a broker report to other parts of the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

P = TypeVar("P")


def _ignore(partition: object) -> None:
    """The default callback, which does nothing."""


class PartitionEvents(Generic[P]):
    """Callbacks and counters. `propose` sends the ISR that a partition proposes to the controller."""

    __slots__ = ("isr_expands", "isr_shrinks", "propose", "written")

    def __init__(self, propose: Callable[[P], None] = _ignore) -> None:
        self.propose = propose
        self.written: Callable[[P], None] = _ignore
        self.isr_shrinks = self.isr_expands = 0
        """The number of times that the ISR of a partition that this broker leads became smaller, and larger."""

    def on_written(self, callback: Callable[[P], None]) -> None:
        """Set the callback for a partition that a thread has written, so that a follower may fetch it again."""
        self.written = callback

    def isr_changed(self, before: int, after: int) -> None:
        """Count a change of an ISR from `before` to `after` members."""
        self.isr_shrinks += after < before
        self.isr_expands += after > before
