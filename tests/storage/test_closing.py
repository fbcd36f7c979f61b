"""A clean shutdown of very many partitions syncs several partitions concurrently, all records are on disk after it, and
its duration is limited."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any

import pytest

from kpybroker.config import LogSettings, parse_config
from kpybroker.sim.world.storage import Storage
from kpybroker.storage.dirs.closing import AT_ONCE, SAID_EVERY_S, STOP_MAX_S
from kpybroker.storage.dirs.log_dir import CLEAN_SHUTDOWN, LogDirectory
from tests.storage.compacting import VirtualWorld
from tests.storage.workshop import plain

PARTITIONS = 3 * AT_ONCE
NEVER_S = 1e6


class SlowDisk:
    """Forwards calls to a SimDisk. Each sync of a file takes `sync_s` longer, and syncs are counted."""

    def __init__(self, disk: Any, sync_s: float) -> None:
        self._disk = disk
        self._sync_s = sync_s
        self.under_way = self.most = self.count = self.of_the_parent = 0
        self.took_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    async def sync(self, handle: int) -> None:
        self.count += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(self._sync_s)
            await self._disk.sync(handle)
        finally:
            self.under_way -= 1

    def sync_directory_blocking(self, path: str) -> None:
        self.of_the_parent += path == "/data"
        self._disk.sync_directory_blocking(path)


def stopped(storage: Storage, sync_s: float) -> SlowDisk:
    """Create partitions with one record each, shut the log directory down, and return its disk."""
    world = VirtualWorld(storage)
    disk = SlowDisk(world.disk, sync_s)
    world.disk = disk  # type: ignore[assignment]
    world.disk.mkdir("/data")
    world.disk.sync_directory_blocking("/")
    directory = LogDirectory(world, "/data", parse_config({}))
    directory.recovered()
    for index in range(PARTITIONS):
        one = directory.open_log("t", bytes(16), index, LogSettings())
        one.append([plain()], 0, 1000)
        one.flush()

    async def stop() -> None:
        begun_s = world.loop.time()
        await directory.close()
        disk.took_s = world.loop.time() - begun_s

    world.loop.run_until_complete(stop())
    return disk


def ends(storage: Storage) -> list[int]:
    """The end offset of each log at the next start."""
    directory = LogDirectory(VirtualWorld(storage), "/data", parse_config({}))
    return [directory.open_log("t", bytes(16), index, LogSettings()).end for index in range(PARTITIONS)]


def test_several_partitions_are_synced_at_a_time_and_their_directory_once() -> None:
    disk = stopped(Storage(), 0.01)
    assert disk.most == AT_ONCE
    assert disk.count <= 3 * PARTITIONS, "the log, the topic's id, the leader epochs"
    assert disk.of_the_parent <= 3


@pytest.mark.parametrize("seed", range(5))
def test_a_clean_shutdown_vouches_only_for_data_on_disk(seed: int) -> None:
    storage = Storage()
    stopped(storage, 0.01)
    storage.lose_power(Random(seed))
    assert CLEAN_SHUTDOWN in VirtualWorld(storage).disk.list("/data")
    assert ends(storage) == [1] * PARTITIONS


def test_a_slow_disk_does_not_delay_a_stop_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    storage = Storage()
    disk = stopped(storage, NEVER_S)
    assert disk.took_s == pytest.approx(STOP_MAX_S, abs=1)
    assert f"{PARTITIONS} of {PARTITIONS} partitions are not synced" in caplog.text
    assert CLEAN_SHUTDOWN not in VirtualWorld(storage).disk.list("/data")
    assert ends(storage) == [1] * PARTITIONS, "the records were written, as after any append"


def test_a_long_stop_logs_its_progress(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        stopped(Storage(), SAID_EVERY_S / 4)
    assert f"of {PARTITIONS} partitions" in caplog.text
    assert "not synced" not in caplog.text
