"""Tests of the simulated disk: synced data and a prefix of the other data survive a power loss; a process that dies
loses nothing."""

from __future__ import annotations

import asyncio
import errno
from random import Random

import pytest

from kpybroker.sim.world.disk import SimDisk
from kpybroker.sim.world.loop import Dead, Owner, VirtualLoop
from kpybroker.sim.world.storage import Storage

SEEDS = range(60)


def disk_of(storage: Storage, owner: Owner | None = None, number: int = 1) -> SimDisk:
    return SimDisk(storage, VirtualLoop(), owner or Owner("p"), number, Random(1), lambda: 5)  # type: ignore[abstract]


@pytest.mark.parametrize("seed", SEEDS)
def test_synced_bytes_survive_plus_a_prefix_of_the_rest(seed: int) -> None:
    random, storage = Random(seed), Storage()
    disk = disk_of(storage)
    handle = disk.open("/f", create=True)
    disk.sync_directory_blocking("/")
    written, synced = b"", 0
    for _ in range(random.randint(1, 12)):
        piece = random.randbytes(random.randint(1, 40))
        disk.pwritev(handle, [piece[:3], piece[3:]], len(written))
        written += piece
        if random.random() < 0.3:
            disk.sync_blocking(handle)
            synced = len(written)
    storage.lose_power(random)
    left = disk_of(storage).open("/f")
    found = bytes(storage.file("/f").content)
    same = next((at for at in range(len(found)) if found[at] != written[at]), len(found))
    assert left
    assert same >= synced
    assert set(found[same:]) <= {0}, "all other bytes are zeros: the length was on disk, the bytes were not"


@pytest.mark.parametrize("seed", SEEDS)
def test_truncations_and_overwrites_are_undone_completely(seed: int) -> None:
    """Whatever is lost, the content of the file is as it was between two calls, or in the middle of the last write."""
    random, storage = Random(seed), Storage()
    disk = disk_of(storage)
    handle = disk.open("/f", create=True)
    disk.pwritev(handle, [bytes(range(1, 101))], 0)
    disk.sync_blocking(handle)
    disk.sync_directory_blocking("/")
    states = [bytes(range(1, 101))]
    for _ in range(random.randint(1, 6)):
        size = random.randint(0, len(states[-1]))
        disk.truncate(handle, size)
        states.append(states[-1][:size])
    storage.lose_power(random)
    assert bytes(storage.file("/f").content) in states


@pytest.mark.parametrize("seed", SEEDS)
def test_unsynced_names_may_vanish_and_synced_ones_stay(seed: int) -> None:
    random, storage = Random(seed), Storage()
    disk = disk_of(storage)
    disk.mkdir("/d/e")
    disk.sync_directory_blocking("/")
    disk.sync_directory_blocking("/d")
    disk.close(disk.open("/d/e/old", create=True))
    disk.sync_directory_blocking("/d/e")
    disk.close(disk.open("/d/e/new.tmp", create=True))
    disk.rename("/d/e/new.tmp", "/d/e/old")
    disk.mkdir("/d/other/below")
    storage.lose_power(random)
    after = disk_of(storage)
    assert after.list("/d/e") in (["old"], ["new.tmp", "old"])
    assert after.list("/d") in (["e"], ["e", "other"])


def test_a_name_returns_if_its_removal_was_not_synced() -> None:
    outcomes = set()
    for seed in SEEDS:
        storage = Storage()
        disk = disk_of(storage)
        disk.close(disk.open("/f", create=True))
        disk.sync_directory_blocking("/")
        disk.unlink("/f")
        storage.lose_power(Random(seed))
        outcomes.add(storage.find("/f") is not None)
    assert outcomes == {True, False}


def test_a_process_that_dies_loses_nothing_but_its_locks() -> None:
    storage, owner = Storage(), Owner("first")
    disk = disk_of(storage, owner)
    lock = disk.lock("/lock")
    assert lock
    disk.pwritev(disk.open("/f", create=True), [b"kept"], 0)
    other = disk_of(storage, number=2)
    with pytest.raises(BlockingIOError):
        other.lock("/lock")
    owner.alive = False
    disk.let_go()
    assert other.lock("/lock")
    assert other.pread(other.open("/f"), 10, 0) == b"kept"
    with pytest.raises(Dead):
        disk.exists("/f")


def test_a_fuse_ends_the_process_in_the_middle_of_a_change() -> None:
    storage, owner = Storage(), Owner("p")
    disk = disk_of(storage, owner)
    handle = disk.open("/f", create=True)
    disk.fuse = 1
    disk.pwritev(handle, [b"one"], 0)
    with pytest.raises(Dead):
        disk.pwritev(handle, [b"two"], 3)
    assert not owner.alive
    assert bytes(storage.file("/f").content) == b"one"


def test_a_full_disk_writes_the_bytes_that_fit() -> None:
    storage = Storage()
    disk = disk_of(storage)
    handle = disk.open("/f", create=True)
    storage.leave_free(5)
    with pytest.raises(OSError) as full:
        disk.pwritev(handle, [b"12345678"], 0)
    assert full.value.errno == errno.ENOSPC
    assert disk.size(handle) == 5
    assert disk.free_bytes("/") == 0
    storage.mend()
    assert disk.pwritev(handle, [b"678"], 5) == 3


def test_a_sync_covers_writes_before_it_began() -> None:
    loop, storage = VirtualLoop(), Storage()  # type: ignore[abstract]
    disk = SimDisk(storage, loop, loop.simulation, 1, Random(1), lambda: 5)

    async def play() -> None:
        handle = disk.open("/f", create=True)
        disk.sync_directory_blocking("/")
        disk.pwritev(handle, [b"before"], 0)
        syncing = asyncio.ensure_future(disk.sync(handle))
        await asyncio.sleep(0)
        disk.pwritev(handle, [b"after"], 6)
        await syncing

    loop.run_until_complete(play())
    assert len(storage.file("/f").changes) == 1
