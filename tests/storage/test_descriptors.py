"""If no file descriptor is free, steps that need one are refused or wait, no log is damaged, and files can be
closed."""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random

import pytest

from kpybroker.config import parse_config
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.sim.world.storage import Storage
from kpybroker.storage.dirs.directory import Directory
from kpybroker.storage.dirs.log_dir import CLEAN_SHUTDOWN, LogDirectory
from kpybroker.storage.dirs.log_dirs import LogDirectories
from kpybroker.storage.files.file_pool import FilePool
from kpybroker.storage.log.log import Log
from kpybroker.wire.records.batch import split
from kpybroker.wire.records.markers import Marker, encode_marker
from tests.storage.compacting import VirtualWorld
from tests.storage.workshop import SMALL, everything, plain

KEPT = replace(SMALL, segment_bytes=1 << 20, index_interval_bytes=1, retention_ms=1)
NODES_FILES = parse_config({"kpybroker.max.open.files": "16", "log.dirs": "/a,/b,/c"})


def log_in(world: VirtualWorld, name: str, pool: FilePool, settings: object = KEPT) -> Log:
    world.disk.mkdir("/data")
    return Log.open(world, f"/data/{name}-0", name, 0, settings, clean=True, pool=pool)  # type: ignore[arg-type]


def filled(log: Log, batches: int) -> None:
    for _ in range(batches):
        log.append([plain()], 0, 1000)
        log.flush()
    log.advance(log.written_end)


def short(world: VirtualWorld) -> None:
    """Prevent any further file from being opened."""
    world.disk.handles_max = world.disk.handles


def test_a_file_can_be_closed_without_another_descriptor() -> None:
    """The index of the closed file has entries that are only in memory."""
    world, pool = VirtualWorld(Storage()), FilePool(10)
    one, other = log_in(world, "one", pool), log_in(world, "other", pool)
    filled(one, 20)
    one.segments.active.used = False
    short(world)
    filled(other, 1)
    assert (one.offline, other.offline) == (None, None)
    world.disk.handles_max = -1
    assert len(one.segments.active.index()) == 19
    assert len(everything(one)) == one.size_bytes


def test_an_index_that_cannot_be_saved_affects_only_its_log() -> None:
    world, pool = VirtualWorld(Storage()), FilePool(1)
    one, other = log_in(world, "one", pool), log_in(world, "other", pool)
    filled(one, 20)
    world.storage.bad_files = ("/data/one-0/", ".index", errno.EIO)
    for _ in range(3):
        filled(other, 1)
        assert everything(one)
    assert (one.offline, other.offline) == (None, None)
    assert len(one.segments.active.index()) == 19, "kept in memory"
    with pytest.raises(Damage):
        one.roll()
    assert one.offline is not None
    filled(other, 1)


def facts(log: Log) -> tuple[int, int, list[str]]:
    """The start and end of the log, and its files, except indexes, which may have been saved in the meantime."""
    return log.start, log.end, [name for name in log.files.world.disk.list(log.directory) if "index" not in name]


@pytest.mark.parametrize("name", ["roll", "truncate_to", "apply_retention", "advance_start", "append", "marker"])
def test_a_step_without_descriptors_is_refused_and_can_be_made_later(name: str) -> None:
    world, pool = VirtualWorld(Storage()), FilePool(10)
    log = log_in(world, "one", pool)
    filled(log, 20)
    log.roll()
    filled(log, 5)
    marker = split(encode_marker(Marker(1, 0, 0, commits=False), 1000))
    step = {
        "roll": log.roll,
        "truncate_to": lambda: log.truncate_to(22),
        "apply_retention": lambda: log.apply_retention(1 << 40),
        "advance_start": lambda: log.advance_start(21),
        "append": lambda: log.append([plain(), plain()], 0, 1000, client=False),
        "marker": lambda: log.append(marker, 0, 1000, client=False),
    }[name]
    if name == "marker":
        log.segments.active.close_files()
    was = facts(log)
    short(world)
    for _ in range(2):
        with pytest.raises(KafkaError) as refused:
            step()
        assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert facts(log) == was
    world.disk.handles_max = -1
    step()
    filled(log, 1)
    assert log.offline is None
    assert facts(log) != was


def test_a_sync_waits_for_a_descriptor() -> None:
    world, pool = VirtualWorld(Storage()), FilePool(10)
    log = log_in(world, "one", pool)
    filled(log, 20)
    log.segments.active.close_files()
    short(world)
    syncing = world.loop.create_task(log.sync())
    world.loop.call_later(5.0, setattr, world.disk, "handles_max", -1)
    world.loop.run_until_complete(syncing)
    assert world.loop.time() >= 5.0
    assert (log.offline, log.synced_end) == (None, 20)


def test_all_log_dirs_have_one_limit() -> None:
    """A partition that cannot be opened for lack of descriptors does not take its directory offline."""
    world = VirtualWorld(Storage())
    for path in NODES_FILES.log_dirs:
        world.disk.mkdir(path)
    directories = [Directory(path, path.encode() * 8, "c", 1, 0) for path in NODES_FILES.log_dirs]
    all_of_them = LogDirectories(world, NODES_FILES, directories, {})
    for number in range(60):
        filled(all_of_them.open_log("t", bytes(16), number, KEPT, directories[number % 3].directory_id), 3)
        assert world.disk.handles <= 16
    assert all(len(directory.logs) == 20 for directory in all_of_them.online)
    failed: list[object] = []
    all_of_them.listen(lambda *_: None, lambda *lost: failed.append(lost), lambda why: None)
    world.disk.handles_max = 0
    for directory in all_of_them.online:
        for one in directory.logs.values():
            one.drop_files()
    with pytest.raises(KafkaError):
        all_of_them.open_log("t", bytes(16), 60, KEPT, bytes(16))
    assert failed == []
    world.disk.handles_max = -1
    assert all_of_them.open_log("t", bytes(16), 60, KEPT, bytes(16)).end == 0


def test_a_clean_shutdown_is_trusted_once_whatever_a_power_loss_takes() -> None:
    for seed in range(20):
        storage = Storage()
        world = VirtualWorld(storage)
        world.disk.mkdir("/data")
        world.disk.sync_directory_blocking("")
        run = world.loop.run_until_complete
        run(LogDirectory(world, "/data", parse_config()).close())
        assert world.disk.exists(f"/data/{CLEAN_SHUTDOWN}")
        assert LogDirectory(world, "/data", parse_config()).clean
        storage.lose_power(Random(seed))
        assert not LogDirectory(VirtualWorld(storage), "/data", parse_config()).clean
