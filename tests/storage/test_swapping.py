"""After a crash or an error at any step of a cleaning, a reader finds the same final state, and no unknown file is
left."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from kpybroker.errors import Damage, KafkaError
from kpybroker.sim.world.loop import Dead
from kpybroker.sim.world.storage import Storage
from kpybroker.storage.log.log import Log
from kpybroker.storage.log.retention import unlink_all
from tests.storage.compacting import (
    COMPACT,
    VirtualWorld,
    append,
    clean,
    committed,
    keyed,
    marker,
    opened,
    records_of,
    table,
)
from tests.storage.failing_disk import HOW, FailingWorld

pytestmark = pytest.mark.slow

WHERE = "/data/t-0"
KNOWN = re.compile(r"\d{20}\.(log|index|timeindex|txnindex|snapshot)|leader-epoch-checkpoint")
LATER_MS = 1_000_000


def written(storage: Storage) -> None:
    """Write and sync a log of several groups of segments, with recurring keys, a tombstone and aborted transactions."""
    world = VirtualWorld(storage)
    log = Log.open(world, WHERE, "t", 0, COMPACT, clean=True)
    more = {"producer_id": 7, "producer_epoch": 0, "transactional": 1}
    for turn in range(4):
        append(log, keyed(("a", str(turn)), (f"only{turn}", "v" * 200), ("gone", str(turn)), ("c", "c" * 300)))
        log.roll()
        append(log, keyed(("a", "aborted"), base_sequence=turn, **more), marker(7, commits=False))
        log.roll()
        append(log, keyed(("gone", "the last segment of its group, which is removed completely")))
        log.roll()
    append(log, keyed(("gone", None)))
    log.roll()
    append(log, keyed(("a", "last")))
    log.close()


def found_on(storage: Storage, *, clean: bool, by: type[VirtualWorld] = VirtualWorld) -> tuple[VirtualWorld, Log]:
    world = by(storage)
    end = 30
    log = Log.open(world, WHERE, "t", 0, COMPACT, clean=clean, recovery_point=end)
    log.advance(log.end)
    assert log.end == end
    return world, log


def whole() -> tuple[Storage, dict[bytes, bytes], list[bytes]]:
    """A disk with the log, the final state that its readers find, and the records that a cleaning leaves."""
    storage = Storage()
    written(storage)
    _, log = found_on(storage.copy(), clean=True)
    told = table(committed(log))
    world, log = found_on(storage.copy(), clean=True)
    world.clean(log, 5000)
    assert len(log.segments) > 2, "there are several groups"
    return storage, told, [repr(record).encode() for record in records_of(log)]


@pytest.mark.parametrize("loses_power", [False, True])
def test_a_crash_at_any_step_leaves_the_same_table(loses_power: bool) -> None:
    storage, told, cleaned = whole()
    assert told[b"a"] == b"last"
    assert b"gone" not in told
    for fuse in range(1000):
        disk = storage.copy()
        world, log = found_on(disk, clean=True)
        world.disk.fuse = fuse
        died = False
        try:
            world.clean(log, 5000)
            unlink_all(world.disk, log.files.take_garbage())
        except Dead:
            died = True
        world.end()
        if loses_power:
            disk.lose_power(Random(fuse))
        world, log = found_on(disk, clean=False)
        assert table(committed(log)) == told, f"after {fuse} changes"
        assert all(KNOWN.fullmatch(name) for name in world.disk.list(WHERE)), world.disk.list(WHERE)
        for segment in log.segments:
            assert segment.base_offset == 29 or not segment.size_bytes or segment.largest_timestamp() == 1000
        world.clean(log, 5000)
        assert [repr(record).encode() for record in records_of(log)] == cleaned, f"cleaned again after {fuse} changes"
        world.clean(log, LATER_MS)
        append(log, keyed(("z", "1")))
        log.roll()
        world.clean(log, LATER_MS)
        assert table(committed(log)) == {**told, b"z": b"1"}, f"tombstones gone, after {fuse} changes"
        if not died:
            return
    raise AssertionError("the cleaning never ends")


@pytest.mark.parametrize("how", [HOW[0], *(pytest.param(how, marks=pytest.mark.slow) for how in HOW[1:])])
def test_a_failing_disk_at_any_step_leaves_the_same_table(how: str) -> None:
    storage, told, _ = whole()
    failures = fails_at = 0
    is_over = False
    while not is_over:
        disk = storage.copy()
        world, log = found_on(disk, clean=True, by=FailingWorld)
        assert isinstance(world, FailingWorld)
        world.disk.count, world.disk.fails_at, world.disk.how = 0, fails_at, how
        try:
            world.clean(log, 5000)
        except (OSError, Damage, KafkaError):
            failures += 1
        with suppress(OSError):
            unlink_all(world.disk, log.files.take_garbage())
        is_over = world.disk.count <= fails_at
        world.end()
        if how != "once":
            again = FailingWorld(disk)
            again.disk.how, again.disk.bad = how, world.disk.bad
            with suppress(Damage):
                Log.open(again, WHERE, "t", 0, COMPACT, clean=False, recovery_point=30)
            again.end()
        world, log = found_on(disk, clean=False)
        assert table(committed(log)) == told, fails_at
        fails_at += 1
    assert failures > 100


def states(path: Path) -> tuple[Path, dict[str, bytes], dict[str, bytes]]:
    """The directory of a log, and its files before and after a cleaning."""
    log = opened(path)
    for turn in range(3):
        append(log, keyed(("a", str(turn)), (f"only{turn}", "1")))
        log.roll()
    append(log, keyed(("z", "1")))
    log.sync_blocking()
    directory = Path(log.directory)
    old = {file.name: file.read_bytes() for file in directory.iterdir()}
    clean(log, 5000)
    unlink_all(log.files.world.disk, log.files.take_garbage())
    log.close()
    return directory, old, {file.name: file.read_bytes() for file in directory.iterdir()}


def put(directory: Path, files: dict[str, bytes]) -> None:
    for file in directory.iterdir():
        file.unlink()
    for name, content in files.items():
        (directory / name).write_bytes(content)


def first(files: dict[str, bytes], ending: str) -> dict[str, bytes]:
    """The files of the segment at offset 0, with the suffix that they have during a swap."""
    return {name + ending: content for name, content in files.items() if name.startswith("0" * 20)}


@pytest.mark.parametrize(
    "state", ["cleaned", "kafka: log first", "ours: log last", "swap", "old half gone", "named, log last", "log first"]
)
def test_every_state_of_a_swap_is_completed(state: str, tmp_path: Path) -> None:
    """The swap was interrupted in kpybroker, which renames the `.log` last, or in Apache Kafka, which renames it
    first."""
    directory, old, new = states(tmp_path)
    fresh = first(new, "")
    without_old = {name: content for name, content in old.items() if name not in fresh and "00002." not in name}
    without_old = {name: content for name, content in without_old.items() if "00004." not in name}
    log_name = "0" * 20 + ".log"
    companions = {name for name in fresh if name != log_name}
    put(
        directory,
        {
            "cleaned": old | first(new, ".cleaned"),
            "ours: log last": old
            | {name + ".swap": fresh[name] for name in companions}
            | {log_name + ".cleaned": fresh[log_name]},
            "kafka: log first": old
            | {name + ".cleaned": fresh[name] for name in companions}
            | {log_name + ".swap": fresh[log_name]},
            "swap": old | first(new, ".swap"),
            "old half gone": {name: content for name, content in old.items() if "00004." not in name}
            | first(new, ".swap"),
            "named, log last": without_old
            | {name: fresh[name] for name in companions}
            | {log_name + ".swap": fresh[log_name]},
            "log first": without_old
            | {name + ".swap": fresh[name] for name in companions}
            | {log_name: fresh[log_name]},
        }[state],
    )
    log = Log.open(
        opened(tmp_path / "other").files.world, str(directory), "t", 0, COMPACT, clean=False, recovery_point=7
    )
    is_old = state in ("cleaned", "ours: log last")
    assert [record.offset for record in records_of(log)] == ([0, 1, 2, 3, 4, 5, 6] if is_old else [1, 3, 4, 5, 6])
    assert [segment.base_offset for segment in log.segments] == ([0, 2, 4, 6] if is_old else [0, 6])
    assert all(KNOWN.fullmatch(file.name) for file in directory.iterdir())
    for segment in log.segments:
        assert segment.base_offset == 6 or segment.largest_timestamp() == 1000, "the time index is complete"


@pytest.mark.parametrize("is_noted", [True, False])
def test_gaps_of_compaction_are_distinguished_from_a_lost_tail(is_noted: bool, tmp_path: Path) -> None:
    """Covers a crash before the cleaner offset was stored."""
    log = opened(tmp_path)
    for turn in range(12):
        append(log, keyed(("a", str(turn)), ("b", "b" * 100)))
        log.roll()
    append(log, keyed(("z", "1")))
    clean(log, 5000)
    assert len(log.segments) > 2
    end, cleaned_end = log.end, log.cleaned_end if is_noted else 0
    log.drop_files()
    deletes = type(COMPACT)(retention_ms=-1)
    again = Log.open(
        log.files.world, log.directory, "t", 0, deletes, clean=False, recovery_point=0, cleaned_end=cleaned_end
    )
    assert again.end == end
    assert len(records_of(again)) == 3


@pytest.mark.parametrize(("cleaned_end", "end"), [(6, 7), (3, 7), (2, 2), (0, 2)])
def test_gaps_that_kafkas_cleaner_left_are_not_damage(cleaned_end: int, end: int, tmp_path: Path) -> None:
    log = opened(tmp_path)
    for turn in range(2):
        append(log, keyed(("a", str(turn)), ("b", "1")), keyed(("a", "1")))
        log.roll()
    append(log, keyed(("z", "1")))
    path = Path(log.segments.first.path + ".log")
    last = list(log.segments.first.walk())[-1]
    log.drop_files()
    path.write_bytes(path.read_bytes()[: last[0]])
    deletes = type(COMPACT)(retention_ms=-1)
    again = Log.open(
        log.files.world, log.directory, "t", 0, deletes, clean=False, recovery_point=0, cleaned_end=cleaned_end
    )
    assert again.end == end
