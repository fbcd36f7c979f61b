"""If the current replica of an interrupted move does not exist, neither the future replica nor the old directory is
deleted."""

from __future__ import annotations

import pytest

from kpybroker.errors import ConfigError, Damage
from kpybroker.sim.world.storage import Storage
from kpybroker.storage.dirs.directory import Directory
from kpybroker.storage.dirs.futures import discard_future, open_future
from kpybroker.storage.dirs.garbage import unlink
from kpybroker.storage.dirs.log_dirs import LogDirectories
from kpybroker.storage.files.segment import LOG, file_name
from kpybroker.wire.directory_ids import UNASSIGNED
from tests.storage.compacting import VirtualWorld
from tests.storage.test_futures import CONFIG, A, B, append, copy, whole
from tests.storage.test_interrupted_moves import (
    ID,
    KEY,
    PATHS,
    SETTINGS,
    begun,
    collect,
    interrupted,
    log_dirs_of,
    stop,
)

RECORDS = 8
LOST = b"l" * 16
"""The id of a directory that no longer exists."""
HALF = f"t-0.{7:032x}"


def in_b(storage: Storage) -> list[str]:
    """The suffixes of the names of the partition's directories in /d/b."""
    return ["-" + name.rpartition("-")[2] for name in VirtualWorld(storage).disk.list("/d/b") if name[:2] == "t-"]


def left(*, copied: int, is_half: bool = False) -> Storage:
    """A disk with a copy of `copied` records in /d/b. The original is missing or, if `is_half`, in a `-delete`
    directory."""
    storage, world, log_dirs, log = begun("/d/a")
    found = log_dirs.by_path("/d/b")
    assert found is not None
    future = open_future(world, found, log, SETTINGS)
    if copied:
        copy(log, future)
    stop(world, log_dirs)
    world.disk.rename("/d/a/t-0", f"/d/a/{HALF}-delete")
    if not is_half:
        unlink(world.disk, [f"/d/a/{HALF}-delete"])
    return storage


def test_a_lone_copy_is_not_truncated_like_an_empty_log() -> None:
    storage = left(copied=RECORDS)
    world = VirtualWorld(storage)
    for _ in range(2):
        with pytest.raises(Damage, match=r"/d/b/t-0\..*-future is a copy of it that may lack the last records") as told:
            log_dirs_of(world).open_log("t", ID, 0, SETTINGS, B)
        assert str(told.value).endswith("or rename the copy to t-0")
    world.end()
    assert in_b(storage) == ["-future"]
    world = VirtualWorld(storage)
    (name,) = (name for name in world.disk.list("/d/b") if name[:2] == "t-")
    world.disk.rename(f"/d/b/{name}", "/d/b/t-0")
    assert whole(log_dirs_of(world).open_log("t", ID, 0, SETTINGS, B)) == RECORDS


def test_a_lone_copy_without_records_is_no_loss() -> None:
    """A log that never had records has no files, while its future replica has files."""
    storage = left(copied=0)
    log = log_dirs_of(VirtualWorld(storage)).open_log("t", ID, 0, SETTINGS, B)
    append(log, 0)
    assert log.directory == "/d/b/t-0"
    log_dirs = log_dirs_of(VirtualWorld(left(copied=0)))
    assert log_dirs.open_log("t", ID, 0, SETTINGS, A).directory == "/d/a/t-0"
    assert log_dirs.future_of(KEY) is log_dirs.by_path("/d/b"), "the move continues to there"


def test_a_copy_of_a_deleted_topic_does_not_prevent_a_new_one() -> None:
    log_dirs = log_dirs_of(VirtualWorld(left(copied=RECORDS)), b"new".ljust(16))
    assert log_dirs.open_log("t", b"new".ljust(16), 0, SETTINGS, B).directory == "/d/b/t-0"


@pytest.mark.parametrize("assigned", [LOST, UNASSIGNED], ids=["lost", "new"])
def test_a_copy_of_a_lost_replica_becomes_a_stray(assigned: bytes) -> None:
    storage = left(copied=RECORDS)
    world = VirtualWorld(storage)
    log_dirs = log_dirs_of(world)
    log = log_dirs.open_log("t", ID, 0, SETTINGS, assigned)
    assert log.end == 0
    assert log_dirs.future_of(KEY) is None
    collect(world, log_dirs)
    assert in_b(storage) == ["-stray"]


def test_a_copy_waits_for_an_unreachable_directory() -> None:
    storage = left(copied=RECORDS)
    world = VirtualWorld(storage)
    log_dirs = LogDirectories(world, CONFIG, [Directory("/d/b", B, "c", 1, 0)], {"/d/a": "it is away"})
    log_dirs.keep_only({KEY: ID})
    for assigned in (A, B):
        with pytest.raises(Damage):
            log_dirs.open_log("t", ID, 0, SETTINGS, assigned)
    assert in_b(storage) == ["-future"]


def test_a_broker_that_stops_creates_no_second_log() -> None:
    """The simulator's seed 1154: the controller assigned the replica to the directory that was left."""
    storage, _, log_dirs, _ = begun("/d/a")
    found = log_dirs.by_path("/d/a")
    assert found is not None
    log_dirs.fail(found, "a bad sector")
    with pytest.raises(Damage, match="as the broker stops: a bad sector"):
        log_dirs.open_log("t", ID, 0, SETTINGS, B)
    assert in_b(storage) == []


def test_the_old_half_of_a_move_outlives_the_loss_of_the_new_one() -> None:
    storage = left(copied=RECORDS, is_half=True)
    for name in VirtualWorld(storage).disk.list("/d/b"):
        storage.folder("/d/b").put((name, None))
    world = VirtualWorld(storage)
    log_dirs = log_dirs_of(world)
    collect(world, log_dirs)
    assert log_dirs.open_log("t", ID, 0, SETTINGS, LOST).end == 0
    collect(world, log_dirs)
    assert file_name(0, LOG) in world.disk.list(f"/d/a/{HALF}-stray")


def test_both_halves_stay_while_there_are_two() -> None:
    """There is also a current log, which was created for another topic with the same name."""
    storage, world, log_dirs, _ = begun("/d/a")
    stop(world, log_dirs)
    world.disk.mkdir(f"/d/a/{HALF}-delete")
    world.disk.mkdir(f"/d/b/{HALF}-future")
    world = VirtualWorld(storage)
    collect(world, log_dirs_of(world))
    assert f"{HALF}-delete" in world.disk.list("/d/a")
    world.disk.rename(f"/d/b/{HALF}-future", "/d/b/gone")
    world = VirtualWorld(storage)
    collect(world, log_dirs_of(world))
    assert f"{HALF}-delete" not in world.disk.list("/d/a")


@pytest.mark.parametrize("target", ["/d/a", "/d/b"])
def test_a_move_that_cannot_be_completed_takes_its_directory_offline(target: str) -> None:
    """If that directory contains the metadata log, the node does not start."""
    source = next(path for path in PATHS if path != target)
    storage = interrupted(source, target)
    storage.bad_files = f"{target}/t-0", "", 5
    world = VirtualWorld(storage)
    if target == "/d/a":
        with pytest.raises(
            ConfigError, match=r"cannot rename /d/a/t-0\..* free space or repair the disk.*nothing was deleted"
        ):
            log_dirs_of(world)
    else:
        log_dirs = log_dirs_of(world)
        assert [directory.path for directory in log_dirs.online] == ["/d/a"]
        assert "cannot rename /d/b/t-0." in log_dirs.offline["/d/b"]
        with pytest.raises(Damage, match="may be in a log directory that is offline: /d/b"):
            log_dirs.open_log("t", ID, 0, SETTINGS, B)
    storage.mend()
    assert whole(log_dirs_of(VirtualWorld(storage)).open_log("t", ID, 0, SETTINGS, target[-1].encode() * 16)) == RECORDS


def test_deleted_partitions_are_unlinked_once_the_metadata_is_known_and_all_directories_are_online() -> None:
    storage = left(copied=RECORDS, is_half=True)
    name = f"{HALF}-delete"
    world = VirtualWorld(storage)
    log_dirs = LogDirectories(world, CONFIG, [Directory("/d/a", A, "c", 1, 0)], {"/d/b": "it is away"})
    log_dirs.keep_only({})
    collect(world, log_dirs)
    assert name in world.disk.list("/d/a"), "its future replica may be in /d/b"
    world = VirtualWorld(storage)
    log_dirs = LogDirectories(world, CONFIG, [Directory(path, path[-1].encode() * 16, "c", 1, 0) for path in PATHS], {})
    collect(world, log_dirs)
    assert name in world.disk.list("/d/a")
    log_dirs.keep_only({})
    collect(world, log_dirs)
    assert name not in world.disk.list("/d/a")


def test_a_copy_beside_the_current_replica_is_not_served() -> None:
    """This happens if a move is cancelled but the copy cannot be renamed, and then another move is completed."""
    storage, world, log_dirs, log = begun("/d/a")
    append(log, RECORDS)
    stop(world, log_dirs)
    world.disk.mkdir(f"/d/a/t-0.{3:032x}-future")
    found = log_dirs_of(VirtualWorld(storage))
    assert found.future_of(KEY) is None
    assert whole(found.open_log("t", ID, 0, SETTINGS, A)) == RECORDS + 1


def test_a_copy_that_cannot_be_deleted_is_used_again() -> None:
    storage, world, log_dirs, log = begun("/d/a")
    target = log_dirs.by_path("/d/b")
    assert target is not None
    copy(log, open_future(world, target, log, SETTINGS))
    name = target.futures[KEY]
    storage.bad_files = "/d/b/t-0", "", 5
    with pytest.raises(OSError, match="stays bad"):
        discard_future(world, target, KEY, 0)
    storage.mend()
    assert open_future(world, target, log, SETTINGS).directory == f"/d/b/{name}"
    assert [each for each in world.disk.list("/d/b") if each[:2] == "t-"] == [name]


@pytest.mark.parametrize("fault", ["offline", "fails at the stop"])
def test_a_stop_is_clean_only_if_all_logs_were_closed(fault: str) -> None:
    storage, world, log_dirs, log = begun("/d/a")
    other = log_dirs.open_log("u", b"u" * 16, 0, SETTINGS, A)
    append(other, 0)
    if fault == "offline":
        log.fail(OSError(24, "no descriptor for it"))  # its directory is still served
    else:
        storage.bad_files = "/d/a/u-0/", "", 5
    stop(world, log_dirs)
    storage.mend()
    found = {directory.path: directory.clean for directory in log_dirs_of(VirtualWorld(storage)).online}
    assert found == {"/d/a": False, "/d/b": True}


def test_the_broker_epoch_of_a_clean_shutdown_counts_if_all_directories_have_it() -> None:
    storage, world, log_dirs, _ = begun("/d/a")
    log_dirs.register(7)
    stop(world, log_dirs)
    assert log_dirs_of(VirtualWorld(storage.copy())).previous_epoch == 7
    world = VirtualWorld(storage)
    found = LogDirectories(world, CONFIG, [Directory("/d/a", A, "c", 1, 0)], {"/d/b": "it is away"})
    assert (found.online[0].previous_epoch, found.previous_epoch) == (7, -1)
