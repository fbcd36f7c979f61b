"""The records of a batch that is being cleaned: decompressed, parsed and joined without blocking the loop.

The work for a batch depends on its decompressed size: a few kilobytes of zstd can contain a hundred megabytes. So after
IN_PLACE_BYTES, decompression continues on the disk's thread, PORTION_BYTES at a time, and nothing of a batch larger
than LARGE_BYTES is read, hashed or copied on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from typing import TypeVar

from kpybroker.errors import Damage, KafkaError
from kpybroker.storage.compaction.offset_map import map_key
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.batch import DECOMPRESSED_LIMIT_BYTES, HEADER_BYTES, Batch
from kpybroker.wire.records.compression import Buffer, Codec, pieces, whole_bytes
from kpybroker.wire.records.decompressed import PIECE_BYTES
from kpybroker.wire.records.record_removal import Found, put_retimed, scan

STEP = 500
"""The records, or equivalent work, of one turn of the loop: two to three milliseconds."""
STEP_BYTES = 1 << 20
"""The number of decompressed bytes whose copying or decompression on the loop takes as long as STEP records."""
IN_PLACE_BYTES = PIECE_BYTES
"""The most bytes that are decompressed on the loop."""
PACKED_BYTES = 16 << 10
"""The largest compressed batch that may be decompressed on the loop, and the largest one that is compressed there."""
LARGE_BYTES = 1 << 20
"""From this decompressed size on, the disk's thread does all the work."""
PORTION_BYTES = 8 << 20
"""How much the disk's thread decompresses in one go, because other work waits for that thread, too."""
_SLICE = 500
Result = TypeVar("Result")
Run = list[int]
"""Consecutive records: where their bytes begin, where they end, and the number of records."""


class CleaningTurns:
    """The loop's turns during the cleaning of one log, and its work on the disk's thread.

    `check` is called after each wait; it raises if the cleaning must be abandoned.
    """

    def __init__(self, log: Log, check: Callable[[], None]) -> None:
        self._log = log
        self._check = check
        self._done = 0

    async def step(self, records: int, size_bytes: int = 0) -> None:
        """Account for work on the loop: after STEP records or STEP_BYTES, other work gets its turn."""
        self._done += records + size_bytes * STEP // STEP_BYTES
        if self._done >= STEP:
            self._done = 0
            await asyncio.sleep(0)

    async def off_loop(self, work: Callable[[], Result]) -> Result:
        """Run `work` on the disk's thread, and return what it returns."""
        found: list[Result] = []
        await self._log.files.world.disk.off_loop(lambda: found.append(work()), self._log.directory)
        self._check()
        return found[0]


class PlainRecords:
    """The decompressed records of a batch: `plain` are their bytes."""

    __slots__ = ("_batch", "_turns", "_where", "plain")

    def __init__(self, batch: Batch, plain: bytes | bytearray, turns: CleaningTurns, where: str) -> None:
        self._batch = batch
        self._turns = turns
        self._where = where
        self.plain = plain

    @property
    def is_large(self) -> bool:
        """Whether work on the records would block the loop for too long."""
        return len(self.plain) > LARGE_BYTES

    async def slices(self) -> AsyncGenerator[list[Found], None]:
        """Yields some records at a time; in a large batch, long keys have the form of the offset map. Raises Damage."""
        batch, turns = self._batch, self._turns
        at, left, last = 0, batch.record_count, -1
        while left > 0:
            count = min(left, _SLICE)
            try:
                found, at = (
                    await turns.off_loop(partial(_scan_large, self.plain, at, count))
                    if self.is_large
                    else (scan(bytes(self.plain), at, count))
                )
            except KafkaError as error:
                raise Damage(f"{self._where}: {error}") from error
            if found[0][3] <= last or found[-1][3] > batch.last_offset_delta:
                raise Damage(f"{self._where}: a record with an offset outside the batch")
            last = found[-1][3]
            yield found
            left -= len(found)
            await turns.step(len(found))

    async def joined(self, runs: list[Run]) -> Buffer:
        """The bytes of some of the records."""
        work = partial(_joined, self.plain, runs)
        return await self._turns.off_loop(work) if self.is_large else work()

    async def retimed(self, runs: list[Run], shift_ms: int) -> Buffer:
        """Like `joined`, with `shift_ms` added to their timestamp deltas."""
        out = bytearray()
        for begin, end, count in runs:
            at, left = begin, count
            while left:
                work = partial(_retime, out, self.plain, at, min(left, _SLICE), shift_ms)
                at, done = await self._turns.off_loop(work) if self.is_large else work()
                left -= done
                await self._turns.step(2 * done)
            assert at == end, "a run of records still ends at the same position"
        return out


async def unpacked(batch: Batch, turns: CleaningTurns, where: str) -> PlainRecords:
    """The records of a batch; memory for at most DECOMPRESSED_LIMIT_BYTES. Raises Damage, which begins with `where`."""
    body, codec = batch.view[HEADER_BYTES:], batch.codec
    if codec == Codec.NONE and len(body) <= LARGE_BYTES:
        return PlainRecords(batch, bytes(body), turns, where)
    plain = bytearray()
    try:
        source = pieces(codec, body, DECOMPRESSED_LIMIT_BYTES)
        is_whole = False
        if codec and len(body) <= PACKED_BYTES and whole_bytes(codec, body) <= IN_PLACE_BYTES:
            is_whole = _take(source, plain, IN_PLACE_BYTES)
            await turns.step(0, len(plain))
        while not is_whole:
            is_whole = await turns.off_loop(partial(_take, source, plain, PORTION_BYTES))
    except KafkaError as error:
        raise Damage(f"{where}: {error}") from error
    return PlainRecords(batch, plain if len(plain) > LARGE_BYTES else bytes(plain), turns, where)


def _take(source: Iterator[bytes | memoryview], plain: bytearray, size_bytes: int) -> bool:
    """Decompress this many more bytes, or up to one piece beyond that. Returns True at the end."""
    until = len(plain) + size_bytes
    for part in source:
        plain += part
        if len(plain) >= until:
            return False
    return True


def _scan_large(plain: Buffer, at: int, count: int) -> tuple[list[Found], int]:
    with memoryview(plain) as view:
        found, at = scan(view, at, count)
        return [
            (begin, end, delta, offset, None if key is None else map_key(key), has_value)
            for begin, end, delta, offset, key, has_value in found
        ], at


def _joined(plain: Buffer, runs: list[Run]) -> bytearray:
    out = bytearray()
    with memoryview(plain) as view:
        for begin, end, _ in runs:
            for at in range(begin, end, LARGE_BYTES):  # one piece at a time, because each holds the interpreter's lock
                out += view[at : min(at + LARGE_BYTES, end)]
    return out


def _retime(out: bytearray, plain: Buffer, at: int, count: int, shift_ms: int) -> tuple[int, int]:
    with memoryview(plain) as view:
        found, at = scan(view, at, count)
        put_retimed(out, view, found, shift_ms)
    return at, len(found)
