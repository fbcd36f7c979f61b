"""If the disk fails at any operation of a move between log.dirs, or of the next start, no record is lost."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress

import pytest

from kpybroker.config import LogSettings
from kpybroker.errors import ConfigError, Damage, KafkaError
from kpybroker.replication.node.replica_moves import truncate_like
from kpybroker.sim.world.storage import Storage
from kpybroker.storage.dirs.directory import Directory
from kpybroker.storage.dirs.futures import open_future, replace
from kpybroker.storage.dirs.garbage import unlink
from kpybroker.storage.dirs.log_dirs import LogDirectories
from kpybroker.storage.log.log import Log
from tests.storage.compacting import VirtualWorld
from tests.storage.failing_disk import HOW, FailingWorld
from tests.storage.test_futures import CONFIG, A, B, append, copy, whole

pytestmark = pytest.mark.slow

KEY, ID = ("t", 0), b"t" * 16
SETTINGS = LogSettings(segment_bytes=700, index_interval_bytes=150, file_delete_delay_ms=60_000)
RECORDS = 8
PATHS = ("/d/a", "/d/b")
WAYS = (PATHS, pytest.param(PATHS[::-1], marks=pytest.mark.slow))
"""The directories between which the replica moves. The metadata log is in /d/a."""


def log_dirs_of(world: VirtualWorld, topic_id: bytes = ID) -> LogDirectories:
    """Open the directories as at startup, and apply metadata in which the partition is on this broker.
    Raises ConfigError."""
    directories = [Directory(path, path[-1].encode() * 16, "c", 1, 0) for path in PATHS]
    found = LogDirectories(world, CONFIG, directories, {})
    found.keep_only({KEY: topic_id})
    return found


def begun(source: str) -> tuple[Storage, FailingWorld, LogDirectories, Log]:
    storage = Storage()
    world = FailingWorld(storage)
    for path in PATHS:
        world.disk.mkdir(path)
    log_dirs = log_dirs_of(world)
    log = log_dirs.open_log("t", ID, 0, SETTINGS, source[-1].encode() * 16)
    append(log, *range(RECORDS))
    log_dirs.recovered()
    return storage, world, log_dirs, log


def move(world: VirtualWorld, log_dirs: LogDirectories, log: Log, path: str) -> None:
    """Move the log as `replication.node.replica_moves` does when the metadata has the new directory. Raises Damage,
    KafkaError."""
    source, target = log_dirs.of(log), log_dirs.by_path(path)
    assert source is not None
    assert target is not None
    future = target.logs.get(KEY) or open_future(world, target, log, SETTINGS)
    truncate_like(future, log)
    copy(log, future)
    world.loop.run_until_complete(future.sync())
    try:
        replace(world, log, future, source, target)
    finally:
        if target.logs.get(KEY) is log:
            log_dirs.moved(KEY, target)


def collect(world: VirtualWorld, log_dirs: LogDirectories) -> None:
    """Unlink the files that are due after `file.delete.delay.ms`."""
    for directory in log_dirs.online:
        unlink(world.disk, directory.garbage.take(world.steady_ms() + SETTINGS.file_delete_delay_ms))


def stop(world: VirtualWorld, log_dirs: LogDirectories) -> None:
    world.loop.run_until_complete(log_dirs.close())


def kill(world: VirtualWorld, log_dirs: LogDirectories) -> None:
    """Do nothing more, as after SIGKILL."""


def wait_and_kill(world: VirtualWorld, log_dirs: LogDirectories) -> None:
    collect(world, log_dirs)


ENDS = (stop, kill, wait_and_kill)
End = Callable[[VirtualWorld, LogDirectories], None]


def play_start(world: VirtualWorld, assigned: bytes, end: End) -> int | None:
    """Start the log directories, read the log, and stop. Return the number of records, or None if the log is
    refused."""
    found = None
    try:
        log_dirs = log_dirs_of(world)
    except ConfigError:
        return None
    with suppress(Damage, KafkaError):
        found = whole(log_dirs.open_log("t", ID, 0, SETTINGS, assigned))
    log_dirs.recovered()
    collect(world, log_dirs)
    end(world, log_dirs)
    world.end()
    return found


def check(storage: Storage, assigned: bytes, acked: int, target: str, why: object) -> None:
    """Check, on disks that work again, that all records exist and that the move can be completed."""
    world = VirtualWorld(storage)
    log_dirs = log_dirs_of(world)
    log = log_dirs.open_log("t", ID, 0, SETTINGS, assigned)
    assert whole(log) == acked, why
    if log_dirs.of(log) is not log_dirs.by_path(target):
        move(world, log_dirs, log, target)
        assert whole(log) == acked, why
    collect(world, log_dirs)
    stop(world, log_dirs)
    last = VirtualWorld(storage)
    assert whole(log_dirs_of(last).open_log("t", ID, 0, SETTINGS, target[-1].encode() * 16)) == acked, why
    assert [name for path in PATHS for name in last.disk.list(path) if name.startswith("t-")] == ["t-0"], why


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("way", WAYS, ids=" to ".join)
def test_a_disk_that_fails_in_a_move(way: tuple[str, str], how: str, end: End) -> None:
    source, target = way
    failures = fails_at = 0
    has_moved = False
    while not has_moved:
        storage, world, log_dirs, log = begun(source)
        world.disk.count, world.disk.fails_at, world.disk.how = 0, fails_at, how
        world.disk.error = errno.ENOSPC if fails_at % 2 else errno.EIO
        acked, told = RECORDS, [A, B]  # the metadata may have the old or the new directory
        try:
            move(world, log_dirs, log, target)
            has_moved, told = world.disk.count <= fails_at, [target[-1].encode() * 16]
        except (Damage, KafkaError):
            failures += 1
        try:
            append(log, RECORDS)
            acked += 1
        except (Damage, KafkaError):
            pass
        end(world, log_dirs)
        world.end()
        for assigned in told:
            copied = storage.copy()
            if how != "once":
                again = FailingWorld(copied)
                again.disk.how, again.disk.bad = how, world.disk.bad
                assert play_start(again, assigned, end) in (None, acked), (fails_at, assigned)
            check(copied, assigned, acked, target, (fails_at, assigned))
        fails_at += 1
    assert failures > 20


def interrupted(source: str, target: str) -> Storage:
    """The disk after a move that was interrupted between the two renames."""
    storage, world, log_dirs, log = begun(source)
    found = log_dirs.by_path(target)
    assert found is not None
    future = open_future(world, found, log, SETTINGS)
    copy(log, future)
    name = found.futures[KEY]
    stop(world, log_dirs)
    world.disk.rename(f"{source}/t-0", f"{source}/{name.removesuffix('-future')}-delete")
    for path in PATHS:
        world.disk.sync_directory_blocking(path)
    return storage


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("way", WAYS, ids=" to ".join)
def test_a_disk_that_fails_in_the_start_after_an_interrupted_move(way: tuple[str, str], how: str, end: End) -> None:
    source, target = way
    before = interrupted(source, target)
    fails_at = refused = 0
    while True:
        storage = before.copy()
        world = FailingWorld(storage)
        world.disk.fails_at, world.disk.how = fails_at, how
        assigned = target[-1].encode() * 16
        found = play_start(world, assigned, end)
        assert found in (None, RECORDS), fails_at
        refused += found is None
        check(storage, assigned, RECORDS, target, fails_at)
        if world.disk.count <= fails_at:
            break
        fails_at += 1
    assert refused
