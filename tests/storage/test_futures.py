"""If the broker dies at any point of a move between log directories, exactly one complete replica opens afterwards."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from kpybroker.config import LogSettings, parse_config
from kpybroker.sim.world.loop import Dead
from kpybroker.sim.world.storage import Storage
from kpybroker.storage.dirs.directory import Directory
from kpybroker.storage.dirs.futures import finish_replacements, open_future, replace
from kpybroker.storage.dirs.log_dirs import LogDirectories
from kpybroker.storage.files.epochs import LeaderEpochs
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.batch import encode_batch, read_records, split
from tests.storage.compacting import VirtualWorld, batches_of
from tests.storage.test_cut import OLD, batch

pytestmark = pytest.mark.slow

A, B = b"a" * 16, b"b" * 16
CONFIG = parse_config({"log.dirs": "/d/a,/d/b"})
SETTINGS = LogSettings(segment_bytes=1500, index_interval_bytes=150)
RECORDS = 60
SYNCED = 50


def opened(storage: Storage) -> tuple[VirtualWorld, LogDirectories]:
    world = VirtualWorld(storage)
    directories = [Directory("/d/a", A, "c", 1, 0), Directory("/d/b", B, "c", 1, 0)]
    return world, LogDirectories(world, CONFIG, directories, {})


def with_a_log() -> tuple[Storage, VirtualWorld, LogDirectories, Log]:
    """A log in /d/a, of which the first SYNCED records are on disk."""
    storage = Storage()
    made = VirtualWorld(storage)
    for path in ("/d/a", "/d/b"):
        made.disk.mkdir(path)
    for path in ("", "/d"):
        made.disk.sync_directory_blocking(path)
    world, log_dirs = opened(storage)
    log = log_dirs.open_log("t", b"t" * 16, 0, SETTINGS, A)
    for offset in range(RECORDS):
        log.append_replicated([batch(offset, OLD)])
        log.flush()
        if offset == SYNCED - 1:
            world.loop.run_until_complete(log.sync())
    log.advance(SYNCED)
    return storage, world, log_dirs, log


def copy(log: Log, future: Log) -> None:
    while future.end < log.end:
        found = log.read(future.end, 1000, upper=log.end, min_one=True)
        assert found is not None
        future.append_replicated(split(memoryview(bytearray(found))))
        future.flush()


def append(log: Log, *offsets: int) -> None:
    for offset in offsets:
        log.append_replicated([batch(offset, OLD)])
    log.flush()


def move(world: VirtualWorld, log_dirs: LogDirectories, log: Log, synced: list[int]) -> None:
    """Copy and replace the log, as `replication.node.replica_moves` does, and continue writing. The number of synced
    records is added to `synced`."""
    source, target = log_dirs.online
    future = open_future(world, target, log, SETTINGS)
    copy(log, future)
    world.loop.run_until_complete(future.sync())
    append(log, RECORDS, RECORDS + 1)
    world.loop.run_until_complete(log.sync())
    synced.append(log.end)
    copy(log, future)
    replace(world, log, future, source, target)
    log_dirs.moved(("t", 0), target)
    append(log, *range(RECORDS + 2, RECORDS + 5))
    log.roll()
    world.loop.run_until_complete(log.sync())
    world.loop.run_until_complete(log_dirs.checkpoint())


def whole(log: Log) -> int:
    """The number of records in the log. Check that each of them is correct."""
    found = [(each.base_offset, next(iter(read_records(each))).value) for each in batches_of(log)]
    assert found == [(offset, next(iter(read_records(batch(offset, OLD)))).value) for offset in range(log.end)]
    return log.end


@pytest.mark.parametrize("is_power", [False, True], ids=["kill", "power"])
def test_one_complete_replica_opens_whenever_the_broker_dies(is_power: bool) -> None:
    places: Counter[str] = Counter()
    finished = False
    fuse = 0
    while not finished:
        storage, world, log_dirs, log = with_a_log()
        world.disk.fuse = fuse
        synced = [SYNCED]
        try:
            move(world, log_dirs, log, synced)
            finished = True
        except Dead:
            pass
        world.owner.alive = False
        if is_power:
            storage.lose_power(Random(fuse))
        for assigned in (A, B):  # the metadata may have the old or the new directory
            again, found = opened(storage.copy())
            one = found.open_log("t", b"t" * 16, 0, SETTINGS, assigned)
            assert whole(one) >= (synced[-1] if is_power else max(RECORDS, synced[-1])), fuse
            where = [path for path in ("/d/a", "/d/b") if again.disk.exists(f"{path}/t-0")]
            assert len(where) == 1
            assert one.directory == f"{where[0]}/t-0"
            places[where[0]] += 1
        fuse += 1
    assert min(places.values()) > 4, places


def test_an_interrupted_replacement_is_completed_once() -> None:
    storage, world, log_dirs, _ = with_a_log()
    world.loop.run_until_complete(log_dirs.close())
    disk = VirtualWorld(storage).disk
    number = f"{1:032x}"
    disk.rename("/d/a/t-0", f"/d/a/t-0.{number}-delete")
    disk.mkdir(f"/d/b/t-0.{number}-future")
    disk.mkdir(f"/d/b/u-0.{number}-future")
    disk.mkdir(f"/d/b/t-1.{2:032x}-future")
    assert finish_replacements(disk, {path: disk.list(path) for path in ("/d/a", "/d/b")}) == {}
    assert disk.list("/d/b") == sorted(
        {
            "t-0",
            f"u-0.{number}-future",
            f"t-1.{2:032x}-future",
            *(n for n in disk.list("/d/b") if n[:2] not in ("t-", "u-")),
        }
    )


def test_a_moved_log_is_the_same_object() -> None:
    storage, world, log_dirs, log = with_a_log()
    producers, generation = log.producers, log.files.generation
    move(world, log_dirs, log, [])
    assert (log.start, log.end, log.high_watermark) == (0, RECORDS + 5, SYNCED)
    assert log.producers is producers
    assert log.files.generation > generation
    assert log.synced_end == log.end
    assert log_dirs.of(log) is log_dirs.online[1]
    assert whole(log) == RECORDS + 5
    world.loop.run_until_complete(log_dirs.close())
    _, again = opened(storage)
    assert again.clean
    assert whole(again.open_log("t", b"t" * 16, 0, SETTINGS, B)) == RECORDS + 5


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_log_that_has_moved_knows_epochs_without_records(is_empty: bool) -> None:
    """The leader of the last epoch has not written any records, and followers request the ends of epochs (KIP-101)."""
    _, world, log_dirs, log = with_a_log()
    if is_empty:
        log = log_dirs.open_log("t", b"t" * 16, 1, SETTINGS, A)
    had = log.epochs.latest
    epoch = had + 3
    log.begin_epoch(epoch)
    was, end = list(log.epochs.entries), log.end
    assert was[-1] == (epoch, end)
    source, target = log_dirs.online
    future = open_future(world, target, log, SETTINGS)
    copy(log, future)
    replace(world, log, future, source, target)
    assert log.epochs.entries == was
    assert log.end_of_epoch(epoch) == (epoch, end)
    assert log.end_of_epoch(epoch - 1) == (epoch - 1 if is_empty else had, end)
    if end:
        saved = LeaderEpochs(world.disk, log.directory)
        saved.load()
        assert saved.entries == was


def test_a_log_that_is_emptied_while_it_moves_goes_on_where_it_was() -> None:
    """Retention deletes all records before they are copied. Then the process is killed before new records are
    written."""
    storage, world, log_dirs, log = with_a_log()
    source, target = log_dirs.online
    future = open_future(world, target, log, SETTINGS)
    written = encode_batch([(None, b"v")], base_offset=RECORDS, producer_id=7, producer_epoch=3, base_sequence=0)
    log.append_replicated(split(written))
    log.flush()
    log.roll()
    log.advance(log.end)
    log.advance_start(log.end)
    assert log.apply_retention(world.wall_ms()) > 0
    assert log.start == log.end == RECORDS + 1
    future.begin_anew(log.start)
    replace(world, log, future, source, target)
    log_dirs.moved(("t", 0), target)
    _, again = opened(storage)
    reopened = again.open_log("t", b"t" * 16, 0, SETTINGS, B)
    assert (reopened.start, reopened.end) == (RECORDS + 1, RECORDS + 1)
    assert [(one.producer_id, one.producer_epoch) for one in reopened.producers] == [(7, 3)]
