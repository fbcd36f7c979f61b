"""A slow device delays only work that needs it. Data that a thread is still writing does not count as written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kpybroker.config import LogSettings, parse_config
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.sim.world.disk import SimDisk, SimWrite
from kpybroker.sim.world.storage import File, Storage
from kpybroker.storage.dirs.log_dir import LogDirectory
from kpybroker.storage.files.checkpoint_files import LOG_STARTS, read_offsets
from kpybroker.storage.log.log import WRITTEN_AT_ONCE_BYTES, Log
from kpybroker.storage.log.write_behind import WRITE_BYTES
from kpybroker.wire.records.batch import split
from kpybroker.world import Buffer
from kpybroker.world.devices import (
    COPIED_BYTES_PER_S,
    QUEUED_BYTES_MAX,
    QUICK_AFTER_MAX_S,
    QUICK_AFTER_S,
    SLOW_WRITE_S,
    Device,
)
from kpybroker.world.real import RealDisk, RealWorld
from tests.replication.leading import NOW_MS, batch
from tests.storage.compacting import VirtualWorld
from tests.storage.two_disks import STALL_S, HeldDisk, TwoDisks
from tests.storage.workshop import SMALL, plain


def test_only_partitions_on_the_slow_device_wait() -> None:
    world = TwoDisks()
    world.appended(b"before")
    world.stall()

    async def play() -> None:
        first, other = world.appended(b"first")
        assert (other.settled, world.quick.log.high_watermark, world.quick.log.written_end) == (1, 2, 2)
        second, other = world.appended(b"second")
        assert (other.settled, world.quick.log.high_watermark) == (1, 3)
        slow = world.slow.log
        assert (first.settled, second.settled, slow.end, slow.written_end, slow.high_watermark) == (0, 0, 3, 1, 1)
        served = slow.read(0, 1 << 20, upper=slow.end, min_one=True)
        assert served is not None
        assert len(split(bytes(served))) == 1, "data that a thread is still writing is not served"
        began_s = world.loop.time()
        await slow.until_written()
        assert world.loop.time() - began_s >= STALL_S - 1
        assert world.loop.time() - began_s < STALL_S + 1
        assert (first.settled, second.settled, slow.written_end, slow.high_watermark) == (1, 1, 3, 3)

    world.loop.run_until_complete(play())
    assert [bytes(one.view) for one in split(world.content(world.slow))] == [
        bytes(one.view) for one in split(world.content(world.quick))
    ]
    assert world.slow.log.files.device.queued_bytes == 0
    assert not world.owner.halted, "the loop was not blocked"


def test_operations_that_need_the_file_wait_for_the_thread() -> None:
    """Before a log is rolled, truncated or closed, all batches are in the file in order, even if a thread was
    writing."""
    for change in ("roll", "truncate", "close", "flush"):
        world = TwoDisks()
        world.stall()

        async def play(world: TwoDisks = world, change: str = change) -> None:
            slow = world.slow.log
            for number in range(4):
                world.appended(b"%d" % number)
            slow.append(batch(b"queued"), 0, NOW_MS)
            assert (slow.written_end, slow.end) == (0, 5)
            if change == "roll":
                slow.roll()
            elif change == "truncate":
                slow.truncate_to(2)
            elif change == "close":
                slow.close()
            else:
                slow.flush()
            assert slow.behind is None
            assert slow.written_end == slow.end == (2 if change == "truncate" else 5)
            await asyncio.sleep(2 * STALL_S)  # long enough for a late report, which would be wrong
            assert slow.written_end == slow.end
            assert slow.files.device.queued_bytes == 0

        world.loop.run_until_complete(play())
        first = world.slow.log.segments.first
        content = bytes(world.storage.file(f"{first.path}.log").content)
        assert [one.base_offset for one in split(content)] == list(range(2 if change == "truncate" else 5))


def test_a_device_that_proves_slow_when_a_file_is_created_is_not_written_by_the_loop() -> None:
    """A batch that needs a new segment is written after the file of the segment is created. The simulated disk refuses
    writes by the loop to a device that is known to be slow."""
    world = TwoDisks(LogSettings(segment_bytes=150))
    world.appended(b"x" * 50)

    async def play() -> None:
        slow = world.slow.log
        slow.append(batch(b"y" * 50), 0, NOW_MS)
        assert not slow.files.device.is_slow
        world.storage.slow_below, world.storage.slow_s = "/slow", 1.0
        slow.flush(wait=False)
        assert slow.files.device.is_slow
        assert (slow.end, slow.written_end) == (2, 1), "a thread writes the batch"
        await slow.until_written()
        assert slow.written_end == 2

    world.loop.run_until_complete(play())
    assert [one.base_offset for one in split(world.content(world.slow))] == [1]


def test_a_write_that_fails_late_is_reported_to_its_waiters() -> None:
    world = TwoDisks()
    world.appended(b"before")
    world.stall()

    async def play() -> None:
        first, _ = world.appended(b"first")
        second, _ = world.appended(b"second")
        world.storage.error_odds, world.storage.errors_below = 1.0, "/slow"
        await world.slow.log.until_written()
        assert (first.settled, second.settled) == (1, 1)
        refusal = world.slow.refusal
        assert refusal is not None
        assert refusal.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (world.slow.log.written_end, world.slow.log.high_watermark) == (1, 1)
        assert (world.slow.log.behind, world.slow.log.files.device.queued_bytes) == (None, 0)

    world.loop.run_until_complete(play())
    with pytest.raises(KafkaError):
        world.slow.append(batch(b"more"), NOW_MS)
    world.quick.append(batch(b"more"), NOW_MS)
    world.hosting.flush()
    assert world.quick.log.high_watermark == 4


def test_the_bytes_that_wait_for_a_slow_device_are_limited() -> None:
    world = TwoDisks()
    world.stall()

    async def play() -> None:
        large = bytes(QUEUED_BYTES_MAX // 64 - 200)
        for _ in range(64):
            world.slow.append(batch(large), NOW_MS)
            world.hosting.flush()
        device = world.slow.log.files.device
        assert not device.is_full
        world.slow.append(batch(large), NOW_MS)
        world.hosting.flush()
        assert device.is_full
        assert device.queued_bytes < QUEUED_BYTES_MAX + len(large)
        with pytest.raises(KafkaError) as refused:
            world.slow.append(batch(b"one more"), NOW_MS)
        assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT
        assert world.slow.log.end == 65
        world.quick.append(batch(b"elsewhere"), NOW_MS)
        await world.slow.log.until_written()
        assert (device.queued_bytes, world.slow.log.written_end) == (0, 65)
        world.slow.append(batch(b"one more"), NOW_MS)

    world.loop.run_until_complete(play())


def test_a_deleted_log_is_not_written_any_more() -> None:
    world = TwoDisks()
    world.stall()

    async def play() -> None:
        world.appended(b"first")
        world.appended(b"second")
        slow = world.slow.log
        slow.files.go_offline("deleted")
        for segment in slow.segments:
            segment.retire()
        assert slow.segments.active.busy, "its file is open as long as the thread uses it"
        await slow.until_written()
        assert (slow.files.device.queued_bytes, slow.segments.active.busy, slow.segments.active.is_open) == (
            0,
            False,
            False,
        )

    world.loop.run_until_complete(play())


def test_a_device_counts_as_quick_after_a_while_and_later_after_each_relapse() -> None:
    device, now_s, waited = Device("/d"), 1000.0, QUICK_AFTER_S
    device.took(SLOW_WRITE_S / 2, now_s)
    assert not device.is_slow
    for _ in range(10):
        device.took(SLOW_WRITE_S, now_s)
        assert device.is_slow
        device.took(0.0, now_s + waited - 1)
        assert device.is_slow
        now_s += waited
        device.took(0.0, now_s)
        assert not device.is_slow
        waited = min(2 * waited, QUICK_AFTER_MAX_S)
    now_s += 3 * QUICK_AFTER_MAX_S
    device.took(SLOW_WRITE_S, now_s)
    device.took(0.0, now_s + QUICK_AFTER_S)
    assert not device.is_slow, "earlier slow writes do not count after a long time"


def test_a_large_write_may_take_as_long_as_copying_its_bytes_does() -> None:
    device, size_bytes = Device("/d"), 100 << 20
    copied_s = size_bytes / COPIED_BYTES_PER_S
    device.took(SLOW_WRITE_S + copied_s - 0.001, 0.0, size_bytes)
    assert not device.is_slow
    device.took(SLOW_WRITE_S + copied_s, 0.0, size_bytes)
    assert device.is_slow


def test_threads_of_a_slow_device_are_not_those_of_another(tmp_path: Path) -> None:
    """If the writes of one device block all its threads, the threads of other devices and the event loop continue."""
    world = RealWorld(1)
    disk = world.disk = HeldDisk(tmp_path / "slow")
    for name in ("slow", "quick"):
        disk.separate(str(tmp_path / name))
        disk.mkdir(str(tmp_path / name))
    settings = replace(SMALL, segment_bytes=1 << 20)

    async def play() -> None:
        logs = [Log.open(world, f"{tmp_path}/slow/t-{n}", "t", n, settings, clean=True) for n in range(20)]
        quick = Log.open(world, f"{tmp_path}/quick/t-0", "t", 0, settings, clean=True)
        disk.device(f"{tmp_path}/slow").took(SLOW_WRITE_S, 0.0)
        for log in logs:
            log.append([plain()], 0, NOW_MS, client=False)
            log.flush(wait=False)
        waits = asyncio.ensure_future(disk.off_loop(disk.wait, f"{tmp_path}/slow"))
        quick.append([plain()], 0, NOW_MS, client=False)
        quick.flush(wait=False)
        await quick.sync()
        await disk.off_loop(lambda: None, f"{tmp_path}/quick")
        handle = quick.segments.active.handle()
        assert len(await disk.cold_read(handle, 1 << 20, 0)) == quick.segments.active.written_bytes > 0
        assert (quick.synced_end, [log.written_end for log in logs]) == (1, [0] * 20)
        disk.may_write.set()
        await waits
        for log in logs:
            await log.until_written()
            log.close()
        assert [log.written_end for log in logs] == [1] * 20
        quick.close()

    asyncio.run(asyncio.wait_for(play(), 30))
    world.close()


class TimedDisk(RealDisk):
    """A real disk with its own clock, on which each write takes `write_s`."""

    write_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.time_s = 1000.0
        self.now_s = lambda: self.time_s

    def _write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        self.time_s += self.write_s
        return super()._write(handle, buffers, offset)


def test_slow_and_quick_writes_are_noticed(tmp_path: Path) -> None:
    world = RealWorld(1)
    disk = world.disk = TimedDisk()
    disk.separate(str(tmp_path))
    log = Log.open(world, f"{tmp_path}/t-0", "t", 0, SMALL, clean=True)

    async def writes_behind() -> bool:
        log.append([plain()], 0, NOW_MS, client=False)
        log.flush(wait=False)
        is_behind = log.behind is not None
        await log.until_written()
        assert log.written_end == log.end
        return is_behind

    async def play() -> None:
        assert not await writes_behind()
        disk.write_s = 2 * SLOW_WRITE_S
        assert not await writes_behind(), "the device was not known to be slow"
        assert await writes_behind()
        disk.write_s = 0.0
        assert await writes_behind(), "one quick write may be chance"
        disk.time_s += QUICK_AFTER_S
        assert await writes_behind()
        assert not await writes_behind()

    asyncio.run(play())
    log.close()
    world.close()


def test_the_slowness_of_a_write_depends_on_its_size(tmp_path: Path) -> None:
    """Copying the bytes of a large write takes longer than SLOW_WRITE_S even on a fast device. This applies to writes
    on the event loop and on threads."""
    disk = TimedDisk()
    disk.separate(str(tmp_path))
    device = disk.device(str(tmp_path))
    handle = disk.open(f"{tmp_path}/file", create=True)
    data = bytes(16 << 20)
    disk.write_s = SLOW_WRITE_S + len(data) / COPIED_BYTES_PER_S - 0.001
    disk.pwritev(handle, [data], 0)
    disk.write_soon(handle, data, 0).result()
    assert not device.is_slow
    disk.pwritev(handle, [data[1 << 20 :]], 0)
    assert device.is_slow
    disk.close(handle)
    disk.shutdown()


def test_a_checkpoint_writes_only_changed_start_offsets() -> None:
    """They are written on the event loop, because DeleteRecords also writes them there."""
    world = VirtualWorld(Storage())
    world.disk.mkdir("/data")
    directory = LogDirectory(world, "/data", parse_config({}))  # type: ignore[arg-type]
    log = directory.open_log("t", bytes(16), 0, LogSettings())

    def written() -> File:
        """The file after a checkpoint. If it was rewritten, it is another object."""
        world.loop.run_until_complete(directory.checkpoint())
        return world.storage.file(f"/data/{LOG_STARTS}")

    first = written()
    assert written() is first
    log.append(batch(b"a", b"b"), 0, NOW_MS)
    log.flush()
    log.advance(2)
    assert written() is first
    log.advance_start(1)
    second = written()
    assert second is not first
    assert read_offsets(world.disk, f"/data/{LOG_STARTS}") == {("t", 0): 1}
    assert written() is second


def test_the_loop_writes_little_at_once_and_a_thread_the_rest() -> None:
    """Even on a fast device, copying many bytes into the page cache takes a long time."""
    world = TwoDisks()
    log = world.slow.log
    world.slow.configure(replace(log.settings, max_message_bytes=1 << 30))
    much = b"x" * WRITTEN_AT_ONCE_BYTES

    async def play() -> None:
        log.append(batch(much[1000:]), 0, NOW_MS)
        log.flush(wait=False)
        assert (log.behind, log.written_end) == (None, 1)
        log.append(batch(much), 0, NOW_MS)
        log.flush(wait=False)
        assert (log.behind is not None, log.written_end, log.end) == (True, 1, 2)
        await log.until_written()
        assert (log.behind, log.written_end, log.files.device.queued_bytes) == (None, 2, 0)
        log.append(batch(much), 0, NOW_MS)
        log.flush()
        assert (log.behind, log.written_end) == (None, 3), "a caller that needs it written waits for it"
        log.files.device.queued_bytes += QUEUED_BYTES_MAX
        log.append(batch(much), 0, NOW_MS)
        log.flush(wait=False)
        assert (log.behind, log.written_end) == (None, 4), "the bytes kept for threads are within the limit"
        log.files.device.queued_bytes -= QUEUED_BYTES_MAX

    world.loop.run_until_complete(play())
    assert len(split(world.content(world.slow))) == 4


def test_the_bytes_that_a_thread_has_to_write_are_limited() -> None:
    """The limit applies even if the device is fast."""
    world = TwoDisks()
    partition = world.slow
    partition.configure(replace(partition.log.settings, max_message_bytes=1 << 30))

    async def play() -> None:
        partition.append(batch(b"x" * QUEUED_BYTES_MAX), NOW_MS)
        partition.flush()
        assert partition.log.behind is not None
        assert not partition.log.files.device.is_slow
        with pytest.raises(KafkaError) as refused:
            partition.append(batch(b"one more"), NOW_MS)
        assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT
        await partition.log.until_written()
        partition.append(batch(b"one more"), NOW_MS)

    world.loop.run_until_complete(play())


class NotingDisk:
    """Forwards calls to a SimDisk, and records the writes of threads."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self.writes: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def write_soon(self, handle: int, data: bytes, offset: int) -> SimWrite:
        self.writes.append(data)
        return self._disk.write_soon(handle, data, offset)


def test_one_write_of_a_thread_is_bounded_however_large_the_flush() -> None:
    """A disk must be able to complete a write before it counts as hanging."""
    world = TwoDisks()
    world.appended(b"before")
    world.stall()
    noting = NotingDisk(world.disk)
    world.disk = noting  # type: ignore[assignment]

    async def play() -> None:
        for _ in range(25):
            world.slow.append(batch(bytes(1_000_000)), NOW_MS)
        world.hosting.flush()
        await world.slow.log.until_written()

    world.loop.run_until_complete(play())
    assert max(map(len, noting.writes)) <= WRITE_BYTES
    assert [one.base_offset for data in noting.writes for one in split(data)] == list(range(1, 26))
    assert world.slow.log.written_end == world.slow.log.end == 26


def test_each_completed_write_advances_the_written_end() -> None:
    """A thread writes a large flush in several pieces, each of which ends at the end of a batch."""
    world = TwoDisks()
    world.appended(b"before")
    world.stall()

    async def play() -> None:
        for _ in range(12):
            world.slow.append(batch(bytes(1_000_000)), NOW_MS)
        world.hosting.flush()
        slow, ends = world.slow.log, set[int]()
        while slow.behind is not None:
            await asyncio.sleep(0.01)
            whole = split(world.content(world.slow)[: slow.segments.active.written_bytes])
            assert whole[-1].next_offset == slow.written_end
            ends.add(slow.written_end)
        assert ends >= {1, 13}

    world.loop.run_until_complete(play())
