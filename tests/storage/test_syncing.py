"""Group commit: callers share a sync, and no caller continues before its records are on disk."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from kpybroker.errors import Damage
from kpybroker.storage.log.log import Log
from kpybroker.world.real import RealDisk, RealWorld
from tests.storage.workshop import SMALL, plain


class SlowDisk(RealDisk):
    """A disk on which the test determines when syncs of segments end."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs: list[asyncio.Future[None]] = []
        self.synced: list[int] = []
        """The handles of synced files."""
        self.directories: list[str] = []
        """The synced directories."""
        self.holds_names = False
        """Whether the sync of a directory never ends."""
        self._segments: set[int] = set()

    def open(self, path: str, *, create: bool = False) -> int:
        handle = super().open(path, create=create)
        (self._segments.add if path.endswith(".log") else self._segments.discard)(handle)
        return handle

    async def sync(self, handle: int) -> None:
        if handle not in self._segments:
            return self.sync_blocking(handle)
        self.syncs.append(asyncio.get_running_loop().create_future())
        await self.syncs[-1]
        self.sync_blocking(handle)
        self.synced.append(handle)
        return None

    async def sync_directory(self, path: str) -> None:
        if self.holds_names:
            await asyncio.get_running_loop().create_future()
        await super().sync_directory(path)

    def sync_directory_blocking(self, path: str) -> None:
        super().sync_directory_blocking(path)
        self.directories.append(path)


def slow_log(path: Path) -> tuple[Log, SlowDisk]:
    world = RealWorld(1)
    world.disk = disk = SlowDisk()
    return Log.open(world, str(path / "t-0"), "t", 0, SMALL, clean=True), disk


def write(log: Log, count: int = 1) -> None:
    for _ in range(count):
        log.append([plain()], 0, 1000)
    log.flush()


def test_callers_share_the_next_sync(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, disk = slow_log(tmp_path)
        write(log)
        first = asyncio.create_task(log.sync())
        await asyncio.sleep(0)
        write(log)
        later = [asyncio.create_task(log.sync()) for _ in range(5)]
        await asyncio.sleep(0)
        assert len(disk.syncs) == 1, "one at a time"
        disk.syncs[0].set_result(None)
        await first
        assert log.synced_end == 1, "data that is written during a sync is not covered by it"
        while len(disk.syncs) < 2:
            await asyncio.sleep(0)
        assert not any(task.done() for task in later)
        disk.syncs[1].set_result(None)
        await asyncio.gather(*later)
        assert log.synced_end == 2
        assert len(disk.syncs) == 2
        disk.shutdown()

    asyncio.run(scenario())


def test_a_segment_that_fills_up_during_an_earlier_sync_is_synced_before_any_caller_returns(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        log, disk = slow_log(tmp_path)
        while len(log.segments) < 2:
            write(log)
        end, active = log.end, log.segments.active
        caller = asyncio.create_task(log.sync())
        await asyncio.sleep(0)
        while log.segments.active is active:
            write(log)
        handle = active.handle()
        while log.synced_end < end:
            for sync in disk.syncs:
                if not sync.done():
                    sync.set_result(None)
            await asyncio.sleep(0)
        assert handle in disk.synced
        await caller
        disk.shutdown()

    asyncio.run(scenario())


def test_a_cancelled_caller_does_not_affect_the_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, disk = slow_log(tmp_path)
        write(log)
        first, second = asyncio.create_task(log.sync()), asyncio.create_task(log.sync())
        await asyncio.sleep(0)
        first.cancel()
        while len(disk.syncs) < 2:
            await asyncio.sleep(0)
        disk.syncs[1].set_result(None)
        await second
        assert log.synced_end == 1
        disk.shutdown()

    asyncio.run(scenario())


def test_a_truncated_part_does_not_count_as_synced(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, disk = slow_log(tmp_path)
        write(log, 3)
        syncing = asyncio.create_task(log.sync())
        await asyncio.sleep(0)
        log.truncate_to(1)
        write(log, 2)
        assert log.end == 3
        disk.syncs[0].set_result(None)
        while len(disk.syncs) < 2:
            await asyncio.sleep(0)
        assert log.synced_end <= 1
        disk.syncs[1].set_result(None)
        await syncing
        assert log.synced_end == 3
        disk.shutdown()

    asyncio.run(scenario())


@pytest.mark.parametrize("left", [1, 0], ids=["some of it is left", "nothing is left"])
def test_truncated_batches_are_not_waited_for(tmp_path: Path, left: int) -> None:
    async def scenario() -> None:
        log, disk = slow_log(tmp_path)
        write(log, 3)
        syncing = asyncio.create_task(log.sync())
        await asyncio.sleep(0)
        log.truncate_to(left)
        disk.syncs[0].set_result(None)
        while not syncing.done() and len(disk.syncs) <= 2:
            if not disk.syncs[-1].done():
                disk.syncs[-1].set_result(None)
            await asyncio.sleep(0)
        assert len(disk.syncs) == 1 + left, "one more for the remaining part, and none for the truncated one"
        await syncing
        assert log.synced_end == log.end == left
        disk.shutdown()

    asyncio.run(scenario())


def test_a_stop_does_not_wait_for_batches_truncated_during_a_cancelled_sync(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, disk = slow_log(tmp_path)
        write(log, 60)
        assert len(log.segments) > 2
        syncing = asyncio.create_task(log.sync())
        await asyncio.sleep(0)
        log.truncate_to(1)
        syncing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await syncing
        log.close()
        assert log.synced_end == log.end == 1
        disk.shutdown()

    asyncio.run(scenario())


def test_names_that_a_cancelled_sync_left_are_synced_by_the_next_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, disk = slow_log(tmp_path)
        disk.holds_names = True
        write(log)
        first = asyncio.create_task(log.sync())
        await asyncio.sleep(0)
        disk.syncs[0].set_result(None)
        while log.files.names_changed:
            await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        disk.holds_names = False
        assert disk.directories == []
        second = asyncio.create_task(log.sync())
        while len(disk.syncs) < 2:
            await asyncio.sleep(0)
        disk.syncs[1].set_result(None)
        await second
        assert log.synced_end == 1
        assert log.directory in disk.directories
        disk.shutdown()

    asyncio.run(scenario())


def test_a_failed_sync_takes_the_log_offline(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, disk = slow_log(tmp_path)
        write(log)
        both = [asyncio.create_task(log.sync()) for _ in range(2)]
        await asyncio.sleep(0)
        disk.syncs[0].set_exception(OSError(5, "Input/output error"))
        for task in both:
            with pytest.raises(Damage, match="Input/output error"):
                await task
        assert log.offline is not None
        assert log.synced_end == 0
        disk.shutdown()

    asyncio.run(scenario())


def test_full_segments_are_synced_with_their_indexes(tmp_path: Path) -> None:
    async def scenario() -> None:
        log = Log.open(RealWorld(1), str(tmp_path / "t-0"), "t", 0, SMALL, clean=True)
        write(log, 60)
        assert len(log.segments) > 2
        assert log.files.has_sealed
        await log.sync()
        assert log.synced_end == log.end
        assert not log.files.has_sealed

    asyncio.run(scenario())


def test_segments_deleted_in_the_meantime_need_no_sync(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, disk = slow_log(tmp_path)
        write(log, 60)
        syncing = asyncio.create_task(log.sync())
        await asyncio.sleep(0)
        log.high_watermark = log.last_stable = log.end
        log.configure(replace(log.settings, retention_ms=0))
        assert log.apply_retention(1 << 40) > 2
        while not syncing.done():
            for one in disk.syncs:
                if not one.done():
                    one.set_result(None)
            await asyncio.sleep(0)
        await syncing
        assert log.synced_end == log.end
        disk.shutdown()

    asyncio.run(scenario())
