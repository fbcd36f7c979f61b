"""Cleans one log: finds the newest offset of each dirty key, and then rewrites the segments without older records.

The rules are those of Kafka (`Cleaner`, KIP-98, KIP-354, KIP-534):

- The record with the largest offset of each key is kept. A tombstone is kept until the delete horizon of its batch,
  which is set at the first cleaning. Records without a key are removed.
- Records of aborted transactions are removed. A marker is kept while records of its transaction are left, and then
  until its delete horizon.
- Two kinds of batches are kept even without records. One is the batch with the last sequence of a known producer, so
  that the state of the producer can be restored. The other is the last batch of each new segment, so that the segment
  ends where the next segment begins (see `swapping` and `recovery`).

Cleaning runs on the event loop, and lets other work run after STEP records or STEP_BYTES. Long work that cannot be
divided runs on the disk's thread (`plain_records`). The log is not changed until a new segment is complete and synced.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import NamedTuple

from kpybroker.config.log_settings import LONG_MAX
from kpybroker.errors import Damage, KafkaError
from kpybroker.storage.compaction.candidates import Dirty, groups
from kpybroker.storage.compaction.cleaned_segment import CleanedSegment
from kpybroker.storage.compaction.cleaned_transactions import CleanedTransactions
from kpybroker.storage.compaction.kept_records import KeptRecords
from kpybroker.storage.compaction.offset_map import OffsetMap
from kpybroker.storage.compaction.plain_records import (
    LARGE_BYTES,
    PACKED_BYTES,
    STEP,
    CleaningTurns,
    PlainRecords,
    unpacked,
)
from kpybroker.storage.files.segment import LOG, Segment, SegmentGone
from kpybroker.storage.files.txn_index import AbortedTransaction
from kpybroker.storage.log.log import Log
from kpybroker.storage.log.swapping import discard
from kpybroker.wire.records.batch import HEADER_BYTES, Batch, header_at
from kpybroker.wire.records.compression import Buffer
from kpybroker.wire.records.record_removal import delete_horizon_ms, emptied, thinned

_BATCH = 4
"""The number of records that take as long to process as the header of a batch."""
_PAUSE_S = 0.01
_PAUSED_AT_ONCE_S = 1.0
"""A change of log.cleaner.io.max.bytes.per.second takes effect within this time."""


class Abandoned(Exception):
    """The cleaning must stop because the log was truncated, lost a segment or went offline in the meantime."""


class Limits(NamedTuple):
    """The broker's settings for cleaning, in bytes and bytes per second."""

    map_bytes: int
    read_bytes: int
    bytes_per_second: Callable[[], float]
    """Returns the current setting, which may change while a log is cleaned."""


class Cleaning:
    """One cleaning of a log. If `run` raises OSError, Damage or Abandoned, the log is unchanged or goes offline."""

    def __init__(self, dirty: Dirty, limits: Limits, now_ms: int) -> None:
        self._log: Log = dirty.log
        self._disk = dirty.log.files.world.disk
        self._dirty = dirty
        self._limits = limits
        self._now_ms = now_ms
        self._map = OffsetMap(limits.map_bytes, dirty.first)
        self._segments = [dirty.log.segments[number] for number in range(dirty.segments)]
        self._generation = dirty.log.files.generation
        self._turns = CleaningTurns(dirty.log, self._check)
        self._debt_bytes = 0.0
        self.read_bytes = 0
        self.written_bytes = 0

    async def run(self) -> int:
        """Clean the log and advance `Log.cleaned_end`. Return the offset up to which the log is now clean."""
        try:
            end = await self._clean()
        except (OSError, Damage, KafkaError, Abandoned):
            await self._let_go()
            raise
        await self._let_go()
        return end

    async def _let_go(self) -> None:
        self._segments = []  # with their indexes, because `_turns` holds this object until the next collection
        for _ in self._map.let_go():
            await self._turns.step(STEP)

    async def _clean(self) -> int:
        if self._log.synced_end < self._log.high_watermark:
            # The newer records and transaction markers because of which other records are removed must not be lost in a
            # power failure. Until the new file names are on disk, a power failure may also restore the old files.
            await self._log.sync(is_chore=True)
        await self._note_keys()
        end = self._map.latest + 1
        count = sum(segment.base_offset < end for segment in self._segments)
        ends = [segment.base_offset for segment in self._segments[1:]] + [self._dirty.end]
        transactions = CleanedTransactions(self._aborted(self._segments[0].base_offset, self._dirty.end))
        for group in groups(self._log, self._segments[:count], ends[count - 1]):
            await self._rewrite(group, transactions)
        self._check()
        self._log.note_cleaned(end)
        return end

    # reading the log

    async def _pay(self, size_bytes: int) -> None:
        """Wait so that log.cleaner.io.max.bytes.per.second is not exceeded."""
        self._debt_bytes += size_bytes
        while (wait_s := self._debt_bytes / self._limits.bytes_per_second()) >= _PAUSE_S:
            if wait_s <= _PAUSED_AT_ONCE_S:
                self._debt_bytes = 0
                await asyncio.sleep(wait_s)
                return
            self._debt_bytes -= self._limits.bytes_per_second() * _PAUSED_AT_ONCE_S
            await asyncio.sleep(_PAUSED_AT_ONCE_S)
            self._check()

    @property
    def is_over(self) -> bool:
        """Whether the log's files were replaced or closed in the meantime."""
        return self._log.offline is not None or self._log.files.generation != self._generation

    def _check(self) -> None:
        if self.is_over:
            raise Abandoned

    async def _batches(self, segment: Segment, position: int = 0) -> AsyncGenerator[Batch, None]:
        """Yield the batches of a segment from `position` on. Raises Damage if one is incomplete or invalid."""
        end, needed = segment.written_bytes, HEADER_BYTES
        while position < end:
            chunk = await self._read(segment, min(max(self._limits.read_bytes, needed), end - position), position)
            whole, at = memoryview(chunk), 0
            while at + HEADER_BYTES <= len(whole):
                needed = header_at(whole, at)[1]
                if needed < HEADER_BYTES or position + at + needed > end:
                    raise self._damage(segment, position + at, f"a batch of {needed} bytes")
                if at + needed > len(whole):
                    break
                batch = Batch(whole[at : at + needed])
                sound = batch.crc_ok() if needed <= LARGE_BYTES else await self._turns.off_loop(batch.crc_ok)
                if not sound or batch.magic != 2:
                    raise self._damage(segment, position + at, "a batch with a wrong CRC or magic")
                await self._turns.step(_BATCH, needed)
                yield batch
                at += needed
            if not at and len(whole) >= needed:
                raise self._damage(segment, position, f"{len(whole)} bytes that are not a batch")
            position += at

    async def _read(self, segment: Segment, size: int, position: int) -> bytes:
        self._check()
        try:
            handle = segment.hold()
        except SegmentGone as gone:
            raise Abandoned from gone
        try:
            chunk = await self._disk.cold_read(handle, size, position)
        finally:
            segment.let_go()
        self._check()
        if len(chunk) < size:
            raise self._damage(segment, position, f"the file ends {size - len(chunk)} bytes early")
        self.read_bytes += size
        await self._pay(size)
        return chunk

    def _damage(self, segment: Segment, position: int, what: str) -> Damage:
        self._check()
        return Damage(f"{segment.path}{LOG}: {what} at position {position}")

    async def _unpacked(self, batch: Batch) -> PlainRecords:
        """The decompressed records of a batch. Raises Damage."""
        return await unpacked(batch, self._turns, f"{self._log!r}: the batch at offset {batch.base_offset}")

    def _aborted(self, offset: int, upper: int) -> list[AbortedTransaction]:
        """The aborted transactions with records from `offset` on and below `upper`."""
        found: list[AbortedTransaction] = []
        segments = self._log.segments
        if segments.any_aborted:
            for number in range(segments.number_for(offset), len(segments)):
                more, is_all = segments[number].aborted.within(offset, upper)
                found += more
                if is_all:
                    break
        return found

    # step 1: reading the keys

    async def _note_keys(self) -> None:
        first = self._dirty.first
        transactions = CleanedTransactions(self._aborted(first, self._dirty.end))
        for number, segment in enumerate(self._segments):
            last = number + 1 == len(self._segments)
            following = self._dirty.end if last else self._segments[number + 1].base_offset
            if following <= first:
                continue
            position = await self._position(segment, first) if segment.base_offset < first else 0
            async with contextlib.aclosing(self._batches(segment, position)) as batches:
                async for batch in batches:
                    if not await self._note_batch(batch, transactions):
                        return
            self._map.counted(following - 1)

    async def _position(self, segment: Segment, offset: int) -> int:
        """The position at which to begin reading to find the batch with an offset."""
        try:
            if not segment.has_indexes:
                await segment.load_indexes_cold()
            self._check()
            if segment.deleted:
                raise Abandoned
            return segment.index().position_for(offset)
        except SegmentGone as gone:
            raise Abandoned from gone

    async def _note_batch(self, batch: Batch, transactions: CleanedTransactions) -> bool:
        """Put the keys of a batch into the offset map. Return False if the map is full."""
        first = self._dirty.first
        if batch.is_control:
            transactions.outlived(batch)
        elif not transactions.drops(batch):
            async with contextlib.aclosing((await self._unpacked(batch)).slices()) as records:
                async for found in records:
                    if not self._map.put_all(found, batch.base_offset):
                        return False
        if batch.last_offset >= first:
            self._map.counted(batch.last_offset)
        return True

    # step 2: rewriting the segments

    async def _rewrite(self, group: list[Segment], transactions: CleanedTransactions) -> None:
        log = self._log
        first = group[0]
        fresh = Segment(self._disk, log.files.pool, log.directory, first.base_offset, created_ms=first.created_ms)
        target = CleanedSegment(self._disk, fresh, log.settings.index_interval_bytes)
        is_complete = False
        try:
            await self._turns.off_loop(partial(discard, self._disk, fresh.path))
            holder = next((segment for segment in reversed(group) if segment.written_bytes), None)
            for segment in group:
                position = 0
                async for batch in self._batches(segment):
                    position += batch.size_bytes
                    is_last = segment is holder and position == segment.written_bytes
                    view = await self._cleaned(batch, transactions, target, is_last=is_last)
                    if view is not None:
                        self.written_bytes += len(view)
                        await self._pay(len(view))
                        await target.add(view)
            await target.finish()
            self._check()
            if any(segment.deleted for segment in group):
                raise Abandoned
            is_complete = True
        finally:
            if not is_complete:
                with contextlib.suppress(OSError):  # the files are deleted by the next start then
                    discard(self._disk, fresh.path)
        try:
            log.files.swap(group, fresh, log.settings.file_delete_delay_ms)
        except OSError as error:
            raise log.fail(error) from error
        if target.has_aborted:
            log.segments.note_aborted()
        await self._disk.sync_directory(log.directory)

    async def _cleaned(
        self, batch: Batch, transactions: CleanedTransactions, target: CleanedSegment, *, is_last: bool
    ) -> bytes | None:
        """The part of a batch that is kept: the whole batch, some of its records, only its header, or nothing
        (None)."""
        horizon_ms = delete_horizon_ms(batch)
        is_past = horizon_ms is not None and horizon_ms <= self._now_ms
        gets_horizon = False
        if batch.is_control:
            outlived, aborted = transactions.outlived(batch)
            if aborted is not None:
                target.add_aborted(aborted)
            drops = outlived and is_past
            gets_horizon = outlived and horizon_ms is None
        else:
            drops = transactions.drops(batch)
        if not drops and batch.record_count:
            kept = await self._thinned(batch, gets_horizon=gets_horizon, tombstones_go=is_past)
            if kept is not None:
                return kept
        if is_last or self._is_last_of_producer(batch):
            return emptied(batch)
        return None

    def _is_last_of_producer(self, batch: Batch) -> bool:
        known = self._log.producers.get(batch.producer_id) if batch.producer_id >= 0 else None
        if known is None:
            return False
        if known.batches:
            return known.batches[-1].last_offset == batch.last_offset
        return batch.is_control and known.producer_epoch == batch.producer_epoch

    async def _thinned(self, batch: Batch, *, gets_horizon: bool, tombstones_go: bool) -> bytes | None:
        """The batch with the records that are kept; None if there are none."""
        plain = await self._unpacked(batch)
        kept = KeptRecords(batch, self._map, tombstones_go=tombstones_go)
        async for found in plain.slices():
            kept.judge(found)
        runs, count = kept.runs, kept.count
        if not count:
            return None
        gets_horizon |= kept.has_tombstones and delete_horizon_ms(batch) is None
        if count == batch.record_count and not gets_horizon:
            return bytes(batch.view)  # a view would keep the whole chunk in memory
        newest_ms = batch.max_timestamp if batch.log_append_time else batch.base_timestamp + kept.newest_delta
        if not gets_horizon:
            return await self._sealed(batch, await plain.joined(runs), count, newest_ms, None)
        horizon_ms = min(self._now_ms + self._log.settings.delete_retention_ms, LONG_MAX)
        if batch.log_append_time:  # the timestamps of individual records are not used
            body = await plain.joined(runs)
        else:
            body = await plain.retimed(runs, batch.base_timestamp - horizon_ms)
        return await self._sealed(batch, body, count, newest_ms, horizon_ms)

    async def _sealed(self, batch: Batch, body: Buffer, count: int, newest_ms: int, horizon_ms: int | None) -> bytes:
        seal = partial(thinned, batch, body, count, newest_ms, horizon_ms)
        if len(body) > (PACKED_BYTES if batch.codec else LARGE_BYTES):
            return await self._turns.off_loop(seal)
        await self._turns.step(0, len(body))
        return seal()
