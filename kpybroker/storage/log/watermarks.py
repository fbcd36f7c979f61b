"""The marks of a log, and how they move: `start <= last_stable <= high_watermark <= end`."""

from __future__ import annotations

from collections.abc import Callable

from kpybroker.storage.files.file_pool import FilePool
from kpybroker.storage.log.queries import ReadSide
from kpybroker.storage.producers.producers import ProducerStates
from kpybroker.world import World
from kpybroker.world.devices import Device


class Marks(ReadSide):
    """Where a log begins, up to where it has committed, and up to where every transaction is decided."""

    __slots__ = ("cleaned_end", "high_watermark", "last_stable", "on_start_moved", "start")

    cleaned_end: int
    """Compaction has cleaned what is below; at most `end`."""

    last_stable: int
    high_watermark: int
    pool: FilePool
    world: World
    device: Device
    producers: ProducerStates
    on_start_moved: Callable[[], None] | None

    def advance(self, high_watermark: int) -> None:
        """Everything below has committed."""
        self.high_watermark = high_watermark
        self.last_stable = high_watermark if self.producers.transactions.quiet else self.stable_below(high_watermark)

    def stable_below(self, high_watermark: int) -> int:
        """What the last stable offset is with that high watermark."""
        return max(self.producers.transactions.stable_below(high_watermark), self.start)

    def advance_start(self, offset: int) -> None:
        """Records below `offset` are deleted (DeleteRecords); their segments go with the next retention."""
        assert self.start <= offset <= self.high_watermark, "only committed records are deleted, and only once"
        if offset > self.start:
            self.pool.require_room(self.world.disk)
            try:
                self.move_start(offset)
                if self.on_start_moved is not None:
                    self.on_start_moved()
            except OSError as error:
                raise self.refusal(error) from error

    def forget_cleaned(self, end: int) -> None:
        """The log was cut: what comes behind `end` now was never cleaned. Raises OSError."""
        if end < self.cleaned_end:
            self.cleaned_end = end
            if self.on_start_moved is not None:
                self.on_start_moved()

    def move_start(self, offset: int) -> None:
        """Raises OSError."""
        self.start = offset
        self.high_watermark = max(self.high_watermark, offset)
        self.last_stable = max(self.last_stable, offset)
        self.epochs.cut_start(offset, save=not self.device.is_slow)  # a start cuts them again
