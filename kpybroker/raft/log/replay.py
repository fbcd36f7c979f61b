"""Applies committed records to the Image, once and in order, and reports each change.

Records that this node has appended or fetched since its start are applied from memory. Records that were in the log at
the start are read back from the log when this node knows that they have committed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from kpybroker.errors import Damage, ErrorCode, KafkaError, MalformedFrame
from kpybroker.metadata.image import Image
from kpybroker.storage.log.log import Log
from kpybroker.storage.log.syncing import SHORT_RETRY_S
from kpybroker.tasks import begin
from kpybroker.wire.records.batch import Batch, read_records, split
from kpybroker.wire.stored.metadata import unframe_record

READ_BYTES = 1 << 20


class PendingBatch(NamedTuple):
    """A batch in the log that has not been applied yet. `records` is empty for a control batch."""

    base: int
    end: int
    epoch: int
    records: list[Any]


def pending_of(batch: Batch) -> PendingBatch:
    """Parse a batch. Raises Damage."""
    records: list[Any] = []
    offset = batch.base_offset
    try:
        if not batch.is_control:
            for record in read_records(batch):
                offset = record.offset
                records.append(unframe_record(record.value or b""))
    except Damage as damage:
        raise Damage(f"offset {offset} of the metadata log has {damage}") from damage
    except (KafkaError, MalformedFrame) as error:
        raise Damage(f"the metadata batch from offset {batch.base_offset} cannot be read: {error}") from error
    return PendingBatch(batch.base_offset, batch.next_offset, batch.leader_epoch, records)


class Replay:
    """The Image of the committed records.

    on_image: called for each change, with the Image before and the Image after. on_applied: called after `on_image`,
    and also if only the offset has changed. on_damage: called when a record cannot be applied; no record is applied
    after that.
    """

    def __init__(
        self, on_image: Callable[[Image, Image], None], on_applied: Callable[[], None], on_damage: Callable[[str], None]
    ) -> None:
        self.image = Image()
        self._log: Log
        self._on_image = on_image
        self._on_applied = on_applied
        self._on_damage = on_damage
        self._pending: deque[PendingBatch] = deque()
        self._committed = 0
        self._reading: asyncio.Task[None] | None = None
        self._is_broken = False

    @property
    def applied(self) -> int:
        """Every record below this offset is in the Image."""
        return self.image.offset + 1

    @property
    def is_reading(self) -> bool:
        """Whether committed records are still being read back from the log."""
        return self._reading is not None

    def begin(self, image: Image, log: Log) -> None:
        """Set the first Image: that of the newest snapshot or, for a sole voter, that of the whole log."""
        self.image, self._log = image, log
        self._committed = self.applied

    def appended(self, pending: PendingBatch) -> None:
        """Keep a batch that was appended to the log until it commits."""
        self._pending.append(pending)

    def cut(self, end: int) -> None:
        """Discard the batches above `end`, because the log was truncated."""
        assert end >= self.applied, "committed records are never truncated"
        while self._pending and self._pending[-1].end > end:
            self._pending.pop()

    def restart(self, image: Image) -> None:
        """Replace the Image, because a snapshot has replaced the log."""
        self._pending.clear()
        before, self.image = self.image, image
        self._committed = max(self._committed, self.applied)
        self._on_image(before, image)
        self._on_applied()

    def commit(self, end: int) -> None:
        """Apply the records below `end`, the new high watermark. If they are in memory, they are applied at once."""
        self._committed = max(end, self._committed)
        if self._reading is not None or self._is_broken:
            return
        if self._is_in_memory():
            self._take_pending()
        elif self.applied < self._committed:
            self._reading = begin(self._read_back(), "reading metadata back", self._on_damage)

    async def stop(self) -> None:
        """Stop reading back. No more records are applied."""
        self._is_broken = True
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _is_in_memory(self) -> bool:
        return bool(self._pending) and self._pending[0].base <= self.applied

    def _take_pending(self) -> None:
        records: list[Any] = []
        end, epoch = self.applied, self.image.epoch
        while self._pending and self._pending[0].end <= self._committed:
            taken = self._pending.popleft()
            records += taken.records
            end, epoch = taken.end, taken.epoch
        self._apply(records, end, epoch)

    def _apply(self, records: list[Any], end: int, epoch: int) -> None:
        before = self.image
        if end <= self.applied:
            return
        try:
            self.image = before.apply(records, end - 1, epoch)
        except Damage as damage:
            self._is_broken = True
            self._on_damage(str(damage))
            return
        if records:
            self._on_image(before, self.image)
        self._on_applied()

    async def _read_back(self) -> None:
        try:
            while self.applied < self._committed and not self._is_broken and not self._is_in_memory():
                await self._read_some_or_wait()
        except (Damage, KafkaError) as damage:
            self._is_broken = True
            self._on_damage(str(damage))
        finally:
            self._reading = None
        self.commit(self._committed)
        self._on_applied()  # called even if nothing was applied, as callers wait until `is_reading` is False

    async def _read_some_or_wait(self) -> None:
        """Read once. If no file descriptor is left, wait before the next attempt."""
        try:
            await self._read_some()
        except KafkaError as refusal:
            if refusal.code != ErrorCode.KAFKA_STORAGE_ERROR or self._log.offline is not None:
                raise
            await asyncio.sleep(SHORT_RETRY_S)

    async def _read_some(self) -> None:
        """Read once, and apply the batches that are complete and below the high watermark."""
        begin, upper = self.applied, self._committed
        found = self._log.read(begin, READ_BYTES, upper=upper, min_one=True)
        if found is None:
            found = await self._log.read_cold(begin, READ_BYTES, upper=upper, min_one=True)
        if self.applied != begin:  # a snapshot has replaced the log during the read
            return
        records: list[Any] = []
        end, epoch = begin, self.image.epoch
        for batch in split(found):
            taken = pending_of(batch)
            records += taken.records
            end, epoch = taken.end, taken.epoch
        while self._pending and self._pending[0].end <= end:
            self._pending.popleft()
        self._apply(records, end, epoch)
