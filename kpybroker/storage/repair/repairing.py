"""`kpybroker storage repair`: repairs a partition, and keeps a copy of every file that it changes or removes.

A damaged segment is first copied to another directory, and then rewritten with its valid batches. The offsets of
removed batches become a gap, like the gaps that compaction leaves. The recovery code of the broker rebuilds indexes,
leader epochs and producer state. Finally, the recovery point in the checkpoint is set to an offset that is on disk.
"""

from __future__ import annotations

from collections.abc import Iterator

from kpybroker.config import LogSettings
from kpybroker.storage.files.checkpoint_files import RECOVERY_POINTS, write_offsets
from kpybroker.storage.files.epochs import FILE_NAME as EPOCHS
from kpybroker.storage.files.segment import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name
from kpybroker.storage.log.log import Log
from kpybroker.storage.repair.checking import Checked, Marks
from kpybroker.storage.repair.examining import ENDLESS, examine
from kpybroker.topics import METADATA_TOPIC, TopicPartition
from kpybroker.world import World

CHUNK_BYTES = 8 << 20
SETTINGS = LogSettings(file_delete_delay_ms=0)


def way_out(checked: Checked, key: TopicPartition) -> str | None:
    """The reason why the partition cannot be repaired; None if it can."""
    if checked.old_format:
        return (
            f"{checked.old_format} has messages of an old format, which a repair would drop, so nothing is changed: "
            "start Apache Kafka on the directory, and copy the topic to a new one"
        )
    if key[0] != METADATA_TOPIC:
        return None
    if checked.has_hole:
        return (
            "the metadata log must not lose a batch: restore the directory, or, if other controllers have it, "
            f"move {checked.path} elsewhere so that it is fetched again"
        )
    if any(path.endswith(".checkpoint") for path in checked.unreadable):
        return (
            "at its next start, the node ignores this metadata snapshot and uses the one before it; if there is none, "
            "restore the directory"
        )
    return None


def plan(checked: Checked) -> Iterator[str]:
    """The steps of the repair, in order."""
    for file in checked.damaged:
        yield f"set a copy of {file} aside, and rewrite it with its valid batches"
    for base in checked.emptied:
        yield f"set {checked.path}/{file_name(base, LOG)} aside with its indexes: its offsets become a gap"
    for file in checked.unreadable:
        yield f"set {file} aside, to be rebuilt"
    if checked.lost_end >= 0:
        yield f"lower the recovery point of {checked.path} to {checked.lost_end}, where its batches end"
    yield f"rebuild the indexes, leader epochs and producer state of {checked.path} where they are wrong"


def repair_partition(world: World, path: str, key: TopicPartition, checked: Checked, marks: Marks, aside: str) -> int:
    """Repair the partition, and return the end offset of its log. Raises OSError, Damage; it can be called again
    then."""
    disk = world.disk
    directory = f"{path}/{key[0]}-{key[1]}"
    place = f"{aside}/{key[0]}-{key[1]}"
    disk.mkdir(place)
    for file in checked.unreadable:
        _copy(world, file, f"{place}/{file.rpartition('/')[2]}")
        disk.unlink(file)
    names = [name[: -len(LOG)] for name in disk.list(directory) if name.endswith(LOG)]
    bases = sorted(int(stem) for stem in names if stem.isdecimal())
    epoch = -1
    epochs = f"{directory}/{EPOCHS}"
    for number, base in enumerate(bases):
        limit = bases[number + 1] if number + 1 < len(bases) else ENDLESS
        file = f"{directory}/{file_name(base, LOG)}"
        handle = disk.open(file)
        try:
            data = disk.pread(handle, disk.size(handle), 0)
        finally:
            disk.close(handle)
        examined = examine(data, base, limit, epoch, checked.known_epoch(base))
        epoch = examined.epoch
        if base in checked.emptied:
            _set_aside_segment(world, directory, base, place)
        if not examined.flaws:
            continue
        _copy(world, file, f"{place}/{file.rpartition('/')[2]}")
        if examined.batches or limit == ENDLESS:
            _replace(world, file, [sound.view for sound in examined.batches])
        else:
            disk.unlink(file)
    if checked.damaged and disk.exists(epochs):  # it was not compared with the damaged batches
        _copy(world, epochs, f"{place}/{EPOCHS}")
        disk.unlink(epochs)
    disk.sync_directory_blocking(directory)
    return _made_anew(world, directory, key, marks)


def _set_aside_segment(world: World, directory: str, base: int, place: str) -> None:
    for suffix in (LOG, INDEX, TIME_INDEX, TXN_INDEX):
        name = file_name(base, suffix)
        if world.disk.exists(f"{directory}/{name}"):
            _copy(world, f"{directory}/{name}", f"{place}/{name}")
            world.disk.unlink(f"{directory}/{name}")


def _made_anew(world: World, directory: str, key: TopicPartition, marks: Marks) -> int:
    """Rebuild indexes, epochs and producer state by recovering the whole log, in which gaps are allowed."""
    log = Log.open(
        world,
        directory,
        key[0],
        key[1],
        SETTINGS,
        clean=False,
        log_start=marks.starts.get(key, 0),
        cleaned_end=ENDLESS,
    )
    end = log.end
    log.sync_blocking()
    log.close()
    return end


def note_ends(world: World, path: str, marks: Marks, ends: dict[TopicPartition, int]) -> None:
    """Save the recovery points, so that recovery does not truncate a log at a gap. Raises OSError."""
    rows = {**marks.recovery_points, **{key: end for key, end in ends.items() if key[0] != METADATA_TOPIC}}
    write_offsets(world.disk, f"{path}/{RECOVERY_POINTS}", rows, sync=True)
    world.disk.sync_directory_blocking(path)


def set_aside(world: World, checked: Checked, aside: str) -> None:
    """Move the unreadable checkpoints of the directory aside. Raises OSError."""
    world.disk.mkdir(aside)
    for file in checked.unreadable:
        _copy(world, file, f"{aside}/{file.rpartition('/')[2]}")
        world.disk.unlink(file)


def _copy(world: World, file: str, to: str) -> None:
    disk = world.disk
    source, target = disk.open(file), disk.open(to, create=True)
    try:
        size = disk.size(source)
        for at in range(0, size, CHUNK_BYTES):
            disk.pwritev(target, [disk.pread(source, min(CHUNK_BYTES, size - at), at)], at)
        disk.sync_blocking(target)
    finally:
        disk.close(source)
        disk.close(target)
    disk.sync_directory_blocking(to.rpartition("/")[0])


def _replace(world: World, file: str, views: list[memoryview]) -> None:
    disk = world.disk
    beside = f"{file}.tmp"
    handle = disk.open(beside, create=True)
    try:
        disk.truncate(handle, 0)
        at = 0
        for view in views:
            at += disk.pwritev(handle, [view], at)
        disk.sync_blocking(handle)
    finally:
        disk.close(handle)
    disk.rename(beside, file)
