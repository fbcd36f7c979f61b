"""Other operations on a log during its cleaning, at any point, do not cause lost or wrong records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import pytest

from kpybroker.config import LogSettings
from kpybroker.sim.world.storage import Storage
from kpybroker.storage.compaction.candidates import look
from kpybroker.storage.compaction.cleaned_segment import CleanedSegment
from kpybroker.storage.compaction.cleaning import Abandoned, Cleaning
from kpybroker.storage.files.segment import Segment
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.batch import split
from tests.storage.compacting import (
    COMPACT,
    LIMITS,
    VirtualWorld,
    append,
    commit,
    committed,
    keyed,
    marker,
    records_of,
    table,
)

MOMENT_S = 0.0004
WHERE = "/data/t-0"


def opened(world: VirtualWorld, settings: LogSettings = COMPACT, *, recovery_point: int = -1) -> Log:
    return Log.open(world, WHERE, "t", 0, settings, clean=recovery_point < 0, recovery_point=max(recovery_point, 0))


def fill(log: Log, segments: int = 12) -> None:
    """Fill the log with segments of two records, with a recurring key and a unique key. The active segment is empty."""
    for turn in range(segments):
        append(log, keyed(("a", str(turn)), (f"only{turn}", "v" * 150)))
        log.roll()


def newest(log: Log) -> dict[bytes | None, int]:
    return {record.key: record.offset for record in records_of(log)}


def cleaned_while(
    meanwhile: Callable[[Log], None], prepare: Callable[[VirtualWorld, Log], None], settings: LogSettings = COMPACT
) -> Iterator[Log]:
    """Yield logs during whose cleaning `meanwhile` was called, each time at a later point, until the cleaning has ended
    before."""
    for number in range(1000):
        world = VirtualWorld(Storage())
        log = opened(world, settings)
        prepare(world, log)
        for segment in log.segments:
            segment.close_files()
        dirty = look(log, 5000)
        assert dirty is not None
        cleaning = Cleaning(dirty, LIMITS, 5000)

        async def play(log: Log = log, cleaning: Cleaning = cleaning, number: int = number) -> bool:
            running = asyncio.ensure_future(cleaning.run())
            await asyncio.sleep(number * MOMENT_S)
            was_done = running.done()
            meanwhile(log)
            try:
                await running
            except Abandoned:
                assert not was_done
            return was_done

        was_done = world.loop.run_until_complete(play())
        assert [name for name in world.disk.list(WHERE) if "cleaned" in name or "swap" in name] == []
        yield log
        if was_done:
            return
    raise AssertionError("the cleaning never ends")


@pytest.mark.slow
def test_truncated_parts_never_count_as_clean() -> None:
    for log in cleaned_while(lambda log: log.truncate_to(9), lambda _, log: fill(log)):
        assert log.end <= 9
        assert log.cleaned_end <= log.end
        append(log, keyed(("a", "new"), ("b", "1")))
        log.roll()
        log.files.world.clean(log, 5000)  # type: ignore[attr-defined]
        assert newest(log)[b"a"] >= 8
        assert sum(record.key == b"a" for record in records_of(log)) == 1


@pytest.mark.slow
def test_retention_may_delete_segments_during_cleaning() -> None:
    def prepare(world: VirtualWorld, log: Log) -> None:
        fill(log)
        dirty = look(log, 5000)
        assert dirty is not None
        partly = LIMITS._replace(map_bytes=2 * 165)
        world.loop.run_until_complete(Cleaning(dirty, partly, 5000).run())
        assert log.segments.holding(log.cleaned_end).base_offset < log.cleaned_end, "in the middle of a segment"

    def retain(log: Log) -> None:
        log.advance_start(5)
        log.configure(replace(log.settings, retention_bytes=1500))
        log.apply_retention(5000)

    both = replace(COMPACT, cleanup_policy=frozenset({"compact", "delete"}), retention_ms=-1, segment_bytes=600)
    for log in cleaned_while(retain, prepare, both):
        assert log.offline is None
        assert log.start >= 5
        keys = [f"only{turn}".encode() for turn in range(12) if 2 * turn + 1 >= log.start]
        assert len(keys) > 3
        assert set(keys) | {b"a"} == set(newest(log))
        assert newest(log)[b"a"] == 22


@pytest.mark.parametrize("chance", range(4))
def test_synced_records_are_on_disk_in_whatever_files(chance: int) -> None:
    """A sync skips a segment that cleaning has replaced. Until the directory is synced, a power failure may restore
    it."""
    for number in range(1000):
        storage = Storage()
        world = VirtualWorld(storage)
        log = opened(world)
        fill(log, 4)
        append(log, keyed(("a", "4"), ("only", "1")))
        world.disk.sync_directory_blocking("/")
        world.loop.run_until_complete(log.sync())
        append(log, keyed(("a", "last"), ("only", "2")))
        log.roll()
        dirty = look(log, 5000)
        assert dirty is not None
        cleaning = Cleaning(dirty, LIMITS, 5000)

        async def play(log: Log = log, cleaning: Cleaning = cleaning, number: int = number) -> tuple[int, bool]:
            running = asyncio.ensure_future(cleaning.run())
            await asyncio.sleep(number * MOMENT_S / 2)
            await log.sync()
            return log.synced_end, running.done()

        synced_end, was_done = world.loop.run_until_complete(play())
        there = newest(log)
        world.end()
        storage.lose_power(Random(chance * 1000 + number))
        again = opened(VirtualWorld(storage), recovery_point=synced_end)
        found = newest(again)
        assert all(found.get(key, -1) >= offset for key, offset in there.items() if offset < synced_end), number
        if was_done:
            return
    raise AssertionError("the cleaning never ends")


@pytest.mark.parametrize("chance", range(20))
def test_an_older_record_stays_while_the_end_of_a_transaction_may_be_lost(chance: int) -> None:
    storage = Storage()
    world = VirtualWorld(storage)
    log = opened(world)
    append(log, keyed(("a", "older")))
    log.roll()
    append(log, keyed(("a", "newer"), producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
    log.roll()
    append(log, keyed(("b", "1")))
    world.disk.sync_directory_blocking("/")
    world.loop.run_until_complete(log.sync())
    append(log, marker(7, commits=True))
    world.clean(log, 5000)
    world.end()
    storage.lose_power(Random(chance))
    again = opened(VirtualWorld(storage), recovery_point=log.synced_end)
    commit(again)
    if again.last_stable < again.end:
        append(again, marker(7, commits=False))
    assert b"a" in table(committed(again))


def test_readers_find_the_next_record() -> None:
    """Readers wait for the disk while segments are replaced. One begins after the last batch of a segment, where Apache
    Kafka's cleaner may leave a gap, and the others begin at other offsets."""

    async def rewritten(log: Log, old: list[Segment], without: set[int]) -> Segment:
        target = Segment(log.files.world.disk, log.files.pool, log.directory, old[0].base_offset)
        cleaned = CleanedSegment(log.files.world.disk, target, 1)
        for segment in old:
            for batch in split(segment.read(segment.written_bytes, 0)):
                if batch.base_offset not in without:
                    await cleaned.add(bytes(batch.view))
        return await cleaned.finish()

    async def read(log: Log, offset: int, delay_s: float) -> int:
        await asyncio.sleep(delay_s)
        found = await log.read_cold(offset, 1, upper=log.end, min_one=True)
        return split(bytes(found))[0].base_offset

    for number in range(60):
        world = VirtualWorld(Storage())
        log = opened(world, replace(COMPACT, index_interval_bytes=1))
        for turn in range(4):
            for half in range(4):
                append(log, keyed((f"k{turn}{half}", "v" * 20 * half)))
            log.roll()

        async def play(log: Log = log, number: int = number) -> list[int]:
            second = [log.segments[1]]
            log.files.swap(second, await rewritten(log, second, {7}), log.settings.file_delete_delay_ms)
            old = [log.segments[number] for number in range(3)]
            fresh = await rewritten(log, old, {0, 1})
            for segment in log.segments:
                segment.close_files()
            readers = [
                asyncio.ensure_future(read(log, offset, delay_s))
                for offset, delay_s in ((2, 0.0), (3, 0.004), (7, 0.0), (7, 0.004))
            ]
            await asyncio.sleep(number * MOMENT_S / 2)
            log.files.swap(old, fresh, log.settings.file_delete_delay_ms)
            return [await reader for reader in readers]

        assert world.loop.run_until_complete(play()) == [2, 3, 8, 8], number
