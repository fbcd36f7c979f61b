"""On a slow device, the writes of threads are reported, and background work writes on threads."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kpybroker.config import LogSettings, parse_config
from kpybroker.errors import Damage
from kpybroker.storage.dirs.log_dir import LogDirectory
from kpybroker.storage.files.checkpoint_files import LOG_STARTS, read_offsets
from kpybroker.storage.files.index import TimeIndex
from kpybroker.storage.log.write_behind import GROWN_INDEX_BYTES
from kpybroker.world.devices import SLOW_WRITE_S
from kpybroker.world.real import RealWorld
from tests.replication.leading import NOW_MS, batch
from tests.storage.two_disks import STALL_S, HeldDisk, TwoDisks
from tests.storage.workshop import plain


@pytest.mark.parametrize("change", ["roll", "truncate", "flush"])
@pytest.mark.parametrize("is_synced", [False, True])
def test_writes_by_threads_are_reported_even_if_something_waited_for_them(change: str, is_synced: bool) -> None:
    """No records are appended afterwards, so only the report can advance the high watermark and complete the
    Produces."""
    world = TwoDisks(LogSettings(fsync_always=is_synced))
    world.stall()

    async def play() -> None:
        waiting = [world.appended(b"%d" % number)[0] for number in range(4)]
        slow = world.slow.log
        if change == "roll":
            slow.roll()
        elif change == "truncate":
            slow.truncate_to(4)
        else:
            slow.flush()
        assert (slow.behind, slow.written_end) == (None, 4)
        await asyncio.sleep(2 * STALL_S)
        assert slow.high_watermark == 4
        assert slow.synced_end == (4 if is_synced else 0)
        assert [waiter.settled for waiter in waiting] == [1] * 4

    world.loop.run_until_complete(play())


def test_a_failed_write_is_reported_even_if_something_waited_for_it() -> None:
    world = TwoDisks()
    world.stall()

    async def play() -> None:
        waiting = [world.appended(b"%d" % number)[0] for number in range(4)]
        world.storage.error_odds, world.storage.errors_below = 1.0, "/slow"
        with pytest.raises(Damage):
            world.slow.log.roll()
        await asyncio.sleep(2 * STALL_S)
        assert world.slow.offline is not None
        assert [waiter.settled for waiter in waiting] == [1] * 4

    world.loop.run_until_complete(play())


def test_an_index_grows_on_a_slow_device_up_to_a_limit() -> None:
    """A roll needs several writes on the event loop. It is postponed until the index exceeds segment.index.bytes by
    GROWN_INDEX_BYTES."""
    settings = LogSettings(index_interval_bytes=0, segment_index_bytes=3 * TimeIndex.entry_bytes)
    entries_max = (settings.segment_index_bytes + GROWN_INDEX_BYTES - 1) // TimeIndex.entry_bytes
    world = TwoDisks(settings)
    slow = world.slow.log
    for _ in range(8):
        slow.append(batch(b"before"), 0, NOW_MS)
    slow.flush()
    assert len(slow.segments) > 1, "the log rolls while the device is fast"
    before = len(slow.segments)
    world.stall()

    async def play() -> None:
        active = slow.segments.active
        saved = active.index().saved_bytes, active.times().saved_bytes
        while active.index_entries < entries_max:
            for _ in range(1000):
                slow.append(batch(b"slow"), 0, NOW_MS)
                if slow.segments.active is not active or active.index_entries == entries_max:
                    break
            assert slow.segments.active is active
            slow.flush(wait=False)
        assert not world.owner.halted, "the loop was not blocked"
        assert (active.index().saved_bytes, active.times().saved_bytes) == saved, "entries stay in memory"
        await slow.until_written()
        slow.append(batch(b"one more"), 0, NOW_MS)
        assert (len(slow.segments), slow.segments.active.index_entries) == (before + 1, 0)

    world.loop.run_until_complete(play())


def test_a_start_offset_is_written_by_a_thread_if_the_device_is_slow(tmp_path: Path) -> None:
    """Only the DeleteRecords request waits, not the event loop or another directory. The newest start offset is
    stored."""
    world = RealWorld(1)
    disk = world.disk = HeldDisk(tmp_path / "slow")
    names = "slow", "quick"
    for name in names:
        disk.separate(str(tmp_path / name))
        disk.mkdir(str(tmp_path / name))

    async def play() -> None:
        disk.may_write.set()
        directories = [LogDirectory(world, str(tmp_path / name), parse_config({})) for name in names]
        slow, quick = (one.open_log("t", bytes(16), 0, LogSettings()) for one in directories)
        for log in (slow, quick):
            for _ in range(3):
                log.append([plain()], 0, NOW_MS, client=False)
            log.flush()
            log.advance(3)
        disk.may_write.clear()
        disk.device(slow.directory).took(SLOW_WRITE_S, 0.0)
        slow.advance_start(1)
        first = asyncio.ensure_future(directories[0].start_offsets.written(("t", 0), 1))
        quick.advance_start(1)
        await directories[1].start_offsets.written(("t", 0), 1)
        assert read_offsets(disk, f"{tmp_path}/quick/{LOG_STARTS}") == {("t", 0): 1}
        slow.advance_start(2)
        second = asyncio.ensure_future(directories[0].start_offsets.written(("t", 0), 2))
        checkpoint = asyncio.ensure_future(directories[0].checkpoint())
        await disk.off_loop(lambda: None, f"{tmp_path}/quick")
        assert (slow.start, first.done(), second.done(), checkpoint.done()) == (2, False, False, False)
        disk.may_write.set()
        await asyncio.gather(first, second, checkpoint)
        assert read_offsets(disk, f"{tmp_path}/slow/{LOG_STARTS}") == {("t", 0): 2}
        slow.advance_start(3)
        for directory in directories:
            await directory.close()
        assert read_offsets(disk, f"{tmp_path}/slow/{LOG_STARTS}") == {("t", 0): 3}

    asyncio.run(asyncio.wait_for(play(), 30))
    world.close()
