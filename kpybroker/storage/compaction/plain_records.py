"""Decompresses, parses and joins the records of a batch that is being cleaned, without blocking the event loop.

The work for a batch depends on its decompressed size, and a few kilobytes of zstd can contain a hundred megabytes.
Therefore, after IN_PLACE_BYTES, decompression continues on the disk's thread, PORTION_BYTES at a time. No part of a
batch larger than LARGE_BYTES is read, hashed or copied on the event loop.
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
"""The number of records, or equivalent work, in one turn of the event loop, which takes two to three milliseconds."""
STEP_BYTES = 1 << 20
"""Copying or decompressing this many bytes on the event loop takes as long as processing STEP records."""
IN_PLACE_BYTES = PIECE_BYTES
"""The maximum number of bytes that are decompressed on the event loop."""
PACKED_BYTES = 16 << 10
"""The largest compressed batch that may be decompressed on the event loop, and the largest body that may be compressed
there."""
LARGE_BYTES = 1 << 20
"""Above this decompressed size, all work is done on the disk's thread."""
PORTION_BYTES = 8 << 20
"""How many bytes the disk's thread decompresses before other work may use the thread."""
_SLICE = 500
_PART_BYTES = 64 << 10
_GROWTH = 16
Result = TypeVar("Result")
Run = list[int]
"""Consecutive records: the position of their first byte, the position after their last byte, and their number."""


class CleaningTurns:
    """The turns of the event loop during the cleaning of one log, and its work on the disk's thread.

    `check` is called after each wait. It raises an exception if the cleaning must be abandoned.
    """

    def __init__(self, log: Log, check: Callable[[], None]) -> None:
        self._log = log
        self._check = check
        self._done = 0

    async def step(self, records: int, size_bytes: int = 0) -> None:
        """Count work on the event loop. After STEP records or STEP_BYTES, let other work run."""
        self._done += records + size_bytes * STEP // STEP_BYTES
        if self._done >= STEP:
            self._done = 0
            await asyncio.sleep(0)

    async def off_loop(self, work: Callable[[], Result]) -> Result:
        """Run `work` on the disk's thread and return its result."""
        found: list[Result] = []
        await self._log.files.world.disk.off_loop(lambda: found.append(work()), self._log.directory)
        self._check()
        return found[0]


class PlainRecords:
    """The decompressed records of a batch. `plain` contains their bytes."""

    __slots__ = ("_batch", "_turns", "_where", "plain")

    def __init__(self, batch: Batch, plain: bytes | bytearray, turns: CleaningTurns, where: str) -> None:
        self._batch = batch
        self._turns = turns
        self._where = where
        self.plain = plain

    @property
    def is_large(self) -> bool:
        """Whether work on the records would block the event loop for too long."""
        return len(self.plain) > LARGE_BYTES

    async def slices(self) -> AsyncGenerator[list[Found], None]:
        """Yield the records in lists. In a large batch, keys have the form of the offset map. Raises Damage."""
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
        """Like `joined`, but with `shift_ms` added to the timestamp deltas of the records."""
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
    """The records of a batch, decompressed to at most DECOMPRESSED_LIMIT_BYTES. Raises Damage with a text that begins
    with `where`."""
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
    """Decompress at least this many more bytes, or the rest. Return True at the end."""
    until = len(plain) + size_bytes
    for part in source:
        plain += part
        if len(plain) >= until:
            return False
    return True


def _scan_large(plain: Buffer, at: int, count: int) -> tuple[list[Found], int]:
    found, at = _scan_part(plain, at, count)
    return [
        (begin, end, delta, offset, None if key is None else map_key(key), has_value)
        for begin, end, delta, offset, key, has_value in found
    ], at


def _scan_part(plain: Buffer, at: int, count: int) -> tuple[list[Found], int]:
    """Like `scan`, but may return fewer records, at least one. Only a part of `plain` is copied to bytes."""
    size_bytes = _PART_BYTES
    with memoryview(plain) as view:
        while True:
            part = bytes(view[at : at + size_bytes])
            found, end = scan(part, 0, count, len(view) - at - len(part))
            if found:
                break
            size_bytes *= _GROWTH  # the record has a long key
    moved = [
        (at + begin, at + after, delta, offset, key, has_value) for begin, after, delta, offset, key, has_value in found
    ]
    return moved, at + end


def _joined(plain: Buffer, runs: list[Run]) -> bytearray:
    out = bytearray()
    with memoryview(plain) as view:
        for begin, end, _ in runs:
            for at in range(begin, end, LARGE_BYTES):  # one piece at a time, because each holds the interpreter's lock
                out += view[at : min(at + LARGE_BYTES, end)]
    return out


def _retime(out: bytearray, plain: Buffer, at: int, count: int, shift_ms: int) -> tuple[int, int]:
    found, at = _scan_part(plain, at, count)
    with memoryview(plain) as view:
        put_retimed(out, view, found, shift_ms)
    return at, len(found)
