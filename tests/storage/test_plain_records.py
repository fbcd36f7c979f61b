"""Cleaning does not block the event loop, whatever the decompressed size of a batch is."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from kpybroker.config import LogSettings
from kpybroker.storage.compaction.candidates import look
from kpybroker.storage.compaction.cleaning import Cleaning
from kpybroker.storage.compaction.plain_records import IN_PLACE_BYTES, LARGE_BYTES, STEP_BYTES
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.batch import Batch, Record, encode_batch, read_records
from kpybroker.wire.records.compression import Codec
from kpybroker.wire.records.decompressed import READ_BYTES
from kpybroker.wire.records.record_removal import delete_horizon_ms
from tests.storage.compacting import COMPACT, LIMITS, append, batches_of, clean, opened, records_of, table

pytestmark = pytest.mark.slow

UNPACKS = {"read", "decompress", "decompress_into", "decompress_raw"}
"""The names of functions that decompress READ_BYTES at a time."""
LONG_WORK = UNPACKS | {"digest", "compress", "compress_raw"}
LARGE = replace(COMPACT, segment_bytes=1 << 20, max_message_bytes=1 << 30)


def filled(path: Path, *batches: bytearray, settings: LogSettings = LARGE) -> Log:
    """A log with these batches, followed by a segment with another batch."""
    log = opened(path, settings)
    append(log, *batches)
    log.roll()
    append(log, encode_batch([(b"active", b"x")]))
    return log


def calls_on_the_loop(log: Log) -> list[Counter[str]]:
    """Clean the log. Return the calls of LONG_WORK functions on the event loop's thread, for each turn of the loop."""
    turns = [Counter[str]()]

    def note(_frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ in LONG_WORK:
            turns[-1][argument.__name__] += 1

    async def cleaned() -> None:
        dirty = look(log, 5000)
        assert dirty is not None
        cleaning = asyncio.ensure_future(Cleaning(dirty, LIMITS, 5000).run())
        sys.setprofile(note)
        try:
            while not cleaning.done():
                turns.append(Counter())
                await asyncio.sleep(0)
        finally:
            sys.setprofile(None)
        await cleaning

    asyncio.run(cleaned())
    return turns


@pytest.mark.parametrize(("codec", "size"), [(Codec.ZSTD, 8 << 20), (Codec.GZIP, 8 << 20), (Codec.LZ4, 3 << 20)])
def test_the_loop_decompresses_one_piece_of_a_large_batch(codec: Codec, size: int, tmp_path: Path) -> None:
    batches = [encode_batch([(b"k%d" % (number % 2), bytes(size))], codec=codec) for number in range(4)]
    assert all(len(batch) < 16 << 10 for batch in batches)
    log = filled(tmp_path, *batches)
    turns = calls_on_the_loop(log)
    made = max(sum(turn[name] for name in UNPACKS) for turn in turns)
    assert made <= IN_PLACE_BYTES // READ_BYTES + 1
    assert [record.offset for record in records_of(log)] == [2, 3, 4]


def test_a_bounded_number_of_bytes_is_decompressed_between_two_turns(tmp_path: Path) -> None:
    batches = [encode_batch([(b"k%d" % number, bytes(60_000))], codec=Codec.ZSTD) for number in range(100)]
    turns = calls_on_the_loop(filled(tmp_path, *batches))
    pieces_a_batch = 2  # the second call detects the end
    assert max(turn["read"] for turn in turns) <= pieces_a_batch * (STEP_BYTES // 60_000 + 2)
    assert sum(turn["read"] for turn in turns) == 2 * pieces_a_batch * len(batches)


@pytest.mark.parametrize("tombstone", [False, True])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_large_records_are_not_hashed_or_compressed_on_the_loop(codec: Codec, tombstone: bool, tmp_path: Path) -> None:
    rows = [(b"gone", b"v"), (b"k" * (2 << 20), b"w" * 5), (b"t", None if tombstone else b"x")]
    log = filled(tmp_path, encode_batch([(b"first", b"y")]), encode_batch(rows, codec=codec), encode_batch(rows[:1]))
    turns = calls_on_the_loop(log)
    called = sum(turns, Counter[str]())
    assert called["digest"] == called["compress"] == 0
    assert [record.offset for record in records_of(log)] == [0, 2, 3, 4, 5]


def some_rows(number: int) -> list[Record]:
    value = bytes([number]) * 700_000
    return [
        Record(0, 1000 + number, b"a", value),
        Record(0, 1000, b"only%d" % number, b"small"),
        Record(0, 1001, b"b" * 200_000 + bytes([number % 2]), value if number % 3 else None),
        Record(0, 999, b"c", None if number == 2 else value),
    ]


@pytest.mark.parametrize("codec", Codec)
def test_large_batches_are_cleaned_like_small_ones(codec: Codec, tmp_path: Path) -> None:
    log = filled(tmp_path, *(encode_batch(some_rows(number), codec=codec) for number in range(4)))
    before = table(records_of(log))
    times = {record.offset: record.timestamp for record in records_of(log)}
    clean(log, 5000)
    batches = batches_of(log)
    assert all(batch.crc_ok() for batch in batches)
    after = [record for batch in batches for record in read_records(batch)]
    assert table(after) == before
    assert len({record.key for record in after}) == len(after)
    assert {record.offset: record.timestamp for record in after}.items() <= times.items()
    assert any(has_large_tombstones(batch) for batch in batches), "some were written with other time deltas"


def has_large_tombstones(batch: Batch) -> bool:
    rows = list(read_records(batch))
    size = sum(len(row.key or b"") + len(row.value or b"") for row in rows)
    return delete_horizon_ms(batch) is not None and size > LARGE_BYTES // 2
