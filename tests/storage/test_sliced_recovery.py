"""A log is recovered in slices: other work is done between them, and the result is the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from random import Random

import pytest

from kpybroker.config import LogSettings
from kpybroker.sim.world.storage import Storage
from kpybroker.storage.files.file_pool import FilePool
from kpybroker.storage.log.log import Log
from kpybroker.storage.log.recovery import Origin
from kpybroker.storage.log.slices import Work, at_once, taken
from kpybroker.storage.producers.loading import SLICE_BATCHES
from kpybroker.wire.records.batch import encode_batch, split
from tests.storage.compacting import VirtualWorld
from tests.storage.workshop import WORLD, History, everything

SETTINGS = LogSettings(segment_bytes=1 << 30, index_interval_bytes=300)
WAYS = ("cold", "warm")


def left_by_kill(seed: int) -> Storage:
    """A disk with a log of several small segments, a part of which is synced, that was killed while it was written."""
    storage = Storage()
    world = VirtualWorld(storage)
    history = History.of(Path("/"), seed, world=world)
    for number in range(60):
        history.append()
        if not number % 20:
            history.lead()
    history.flush()
    active = history.log.segments.active
    tail = Random(seed).randrange(active.size_bytes)
    handle = active.handle()
    world.disk.truncate(handle, active.size_bytes - tail)
    world.end()
    return storage


def path_in(storage: Storage) -> str:
    return "/" + next(name for name in VirtualWorld(storage).disk.list("/") if name.startswith("t-"))


def loading(world: VirtualWorld, path: str, pool: FilePool | None = None) -> Work[Log]:
    origin = Origin(clean=False, recovery_point=0, log_start=0, now_ms=5000, producer_expiration_ms=1 << 60)
    files = FilePool(64) if pool is None else pool
    return Log.loading(world, files, path, ("t", 0), None, SETTINGS, origin, lazy=True)  # type: ignore[arg-type]


def shown(log: Log) -> object:
    """Everything that recovery finds out, in memory and in the files."""
    disk, path = log.files.world.disk, log.directory
    log.segments.active.save_indexes(make=True)
    names = disk.list(path)
    opened = [disk.open(f"{path}/{name}") for name in names]
    files = {name: disk.pread(handle, 1 << 20, 0) for name, handle in zip(names, opened, strict=True)}
    return log.start, log.end, log.epochs.entries, log.producers.build_snapshot(), everything(log), files


def steps(work: Work[Log], ended: list[Log]) -> Iterator[None]:
    """Run a work, with a stop after each slice, and put its log into `ended`."""
    step = None
    while True:
        try:
            step = taken(work, step)()
        except StopIteration as end:
            ended.append(end.value)
            return
        yield


@pytest.mark.parametrize("seed", range(6))
def test_other_logs_may_use_the_files_between_two_slices(seed: int) -> None:
    """Two logs share a pool of one file, and their cold reads are done on a thread: each is recovered as if it were
    alone."""
    storage = left_by_kill(seed)
    path = path_in(storage)
    alone = shown(at_once(loading(VirtualWorld(storage.copy()), path)))
    other = left_by_kill(seed + 100)
    for name in VirtualWorld(other).disk.list("/"):
        if not VirtualWorld(storage).disk.exists(f"/{name}"):
            found = other.find(f"/{name}")
            storage.folder("/").put((name, found))
    (second,) = {f"/{name}" for name in VirtualWorld(storage).disk.list("/")} - {path}
    storage.set_pace(1.0, (0.0, 0.0))
    world, pool = VirtualWorld(storage), FilePool(1)
    ended: list[Log] = []
    turns = [steps(loading(world, each, pool), ended) for each in (path, second)]
    for _ in zip_longest(*turns):
        pass
    storage.warm()
    assert alone in [shown(log) for log in ended]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("way", WAYS)
def test_a_recovery_that_is_broken_off_can_be_repeated(way: str, seed: int) -> None:
    """A stop in the middle of a recovery leaves files from which the next start recovers the same log, and leaves no
    file open."""
    storage = left_by_kill(seed)
    path = path_in(storage)
    whole = shown(at_once(loading(VirtualWorld(storage.copy()), path)))
    count = 0
    while True:
        disk = storage.copy()
        disk.set_pace(float(way == "cold"), (0.0, 0.0))
        world = VirtualWorld(disk)
        work = loading(world, path)
        slices = steps(work, [])
        is_over = [next(slices, "over") for _ in range(count + 1)][-1] == "over"
        if is_over:
            break
        work.close()
        assert not world.disk.handles
        disk.warm()
        assert shown(at_once(loading(VirtualWorld(disk), path))) == whole
        count += 1
    assert count > 2


def test_a_segment_of_many_batches_has_many_slices(tmp_path: Path) -> None:
    """Neither the check of tiny batches nor the replays of their epochs and producers hold up other work for long."""
    count = 4 * SLICE_BATCHES
    log = Log.open(WORLD, str(tmp_path / "t-0"), "t", 0, SETTINGS, clean=True)
    for number in range(count):
        batch = encode_batch([(None, b"")], timestamp_ms=5000, producer_id=1, producer_epoch=0, base_sequence=number)
        log.append(split(batch), 0, 5000)
    log.flush()
    log.drop_files()
    origin = Origin(clean=False, recovery_point=0, log_start=0, now_ms=5000, producer_expiration_ms=1 << 60)
    recovered: list[Log] = []
    work = Log.loading(WORLD, FilePool(9), log.directory, ("t", 0), None, SETTINGS, origin, lazy=True)
    assert len(list(steps(work, recovered))) >= 3 * count // SLICE_BATCHES
    assert recovered[0].end == count
