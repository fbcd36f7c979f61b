"""Future replicas: copies of logs in other log directories of the broker, which will replace the current replicas.

A copy is in `<topic>-<partition>.<hex>-future` (KIP-113). When it is complete and on disk, the current directory is
renamed to `<topic>-<partition>.<hex>-delete`, and then the copy to `<topic>-<partition>`. Each rename is synced before
the next one. Both names have the same hex number. If the broker finds both names at its start, but no current
directory, it completes the interrupted replacement. For this reason, the old directory is deleted only after the new
name of the copy is on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from kpybroker.config import LogSettings
from kpybroker.errors import Damage
from kpybroker.storage.dirs.directory_names import DELETED, FUTURE, STRAY, key_of_future, unique_name
from kpybroker.storage.dirs.log_dir import LogDirectory
from kpybroker.storage.files.checkpoint_files import read_topic_id
from kpybroker.storage.files.segment import LOG, file_name
from kpybroker.storage.log.log import Log
from kpybroker.topics import TopicPartition
from kpybroker.world import Disk, World

log = logging.getLogger(__name__)


def topic_id_in(disk: Disk, log_path: str) -> bytes | None:
    """The topic id of a log directory; None if it cannot be read."""
    try:
        return read_topic_id(disk, log_path)
    except (Damage, OSError):
        return None


def _has_records(disk: Disk, path: str, topic_id: bytes) -> bool:
    """Whether a log has records of this topic, or had some earlier, because it begins above offset 0. Raises
    OSError."""
    if not disk.exists(path) or topic_id_in(disk, path) not in (topic_id, None):
        return False
    logs = (name for name in disk.list(path) if name.endswith(LOG))
    return any(name != file_name(0, LOG) or disk.path_size(f"{path}/{name}") for name in logs)


def finish_replacements(disk: Disk, names: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Complete replacements that were interrupted between the two renames. `names` contains the entries of each log
    directory.

    Return the errors by path. In these directories, a future replica may not have been renamed.
    """
    everywhere = set().union(*names.values())
    failed: dict[str, str] = {}
    for path, name in [(each, name) for each, there in names.items() for name in sorted(there)]:
        key = key_of_future(name)
        if key is None or path in failed:
            continue
        current = f"{key[0]}-{key[1]}"
        if current in everywhere or f"{name.removesuffix(FUTURE)}{DELETED}" not in everywhere:
            continue
        log.warning("%s/%s replaces %s: completed an interrupted move", path, name, current)
        try:
            disk.rename(f"{path}/{name}", f"{path}/{current}")
            disk.sync_directory_blocking(path)
        except OSError as error:
            failed[path] = f"cannot rename {path}/{name} to {current}: {error.strerror or error}"
    return failed


def open_future(world: World, directory: LogDirectory, of: Log, settings: LogSettings) -> Log:
    """Open the future replica of a log in another log directory, or create it. Raises Damage, KAFKA_STORAGE_ERROR."""
    key = of.topic, of.partition
    topic_id = of.files.topic_id
    assert topic_id is not None, "a hosted log has a topic id"
    name = directory.futures.get(key)
    try:
        if name is not None and read_topic_id(world.disk, f"{directory.path}/{name}") not in (None, topic_id):
            discard_future(world, directory, key, settings.file_delete_delay_ms)
            name = None
    except OSError as error:
        raise Damage(f"{directory.path}/{name}: {error}") from error
    if name is None:
        name = unique_name(of.topic, of.partition, world.random.getrandbits(128), FUTURE)
        directory.futures[key] = name
    opened = directory.open_log(of.topic, topic_id, of.partition, settings)
    try:
        if not opened.files.made:
            opened.files.make()  # so that the move continues after a restart
    except OSError as error:
        raise opened.fail(error) from error
    return opened


def discard_future(
    world: World, directory: LogDirectory, key: TopicPartition, delay_ms: int, *, is_kept: bool = False
) -> None:
    """Delete a future replica. Its directory is renamed now and unlinked later. If `is_kept`, it is only renamed, to
    `-stray`. Raises OSError."""
    name = directory.futures[key]
    opened = directory.logs.pop(key, None)
    if opened is not None:
        opened.retire(f"{opened!r} was abandoned")
    directory.forget(key)
    old = f"{directory.path}/{name}"
    if world.disk.exists(old):
        ending = STRAY if is_kept else DELETED
        new = f"{directory.path}/{unique_name(*key, world.random.getrandbits(128), ending)}"
        world.disk.rename(old, new)
        if not is_kept:
            directory.garbage.add(world.steady_ms() + delay_ms, new)
    del directory.futures[key]


def refuse_lone_copy(disk: Disk, directory: LogDirectory, key: TopicPartition, topic_id: bytes) -> None:
    """Raise Damage if a future replica has records, so that an operator can decide whether to keep it.

    Called before a log is created while the broker runs, because the empty log would truncate its future replica.
    """
    path = f"{directory.path}/{directory.futures[key]}"
    try:
        is_refused = _has_records(disk, path, topic_id)
    except OSError as error:
        raise Damage(f"{path}: {error}") from error
    if is_refused:
        name = f"{key[0]}-{key[1]}"
        raise Damage(
            f"{name} is in none of log.dirs, and {path} is a copy of it that may lack the last records; stop the "
            f"broker, and put back the directory that had it, or rename the copy to {name}"
        )


def set_copy_aside(world: World, directory: LogDirectory, key: TopicPartition, topic_id: bytes) -> None:
    """Delete the future replica of a log that is being created. If it has records, keep it as `-stray`. Raises
    Damage."""
    path = f"{directory.path}/{directory.futures[key]}"
    try:
        is_kept = _has_records(world.disk, path, topic_id)
        if is_kept:
            log.error("%s is an incomplete copy of a lost replica, and is renamed to -stray", path)
        discard_future(world, directory, key, 0, is_kept=is_kept)
    except OSError as error:
        raise Damage(f"{path}: {error}") from error


def set_half_aside(disk: Disk, path: str) -> None:
    """Keep the old files of a replica that was lost after it had moved, as `-stray`. Raises Damage."""
    log.error("%s is a replica that has moved, but its new directory is missing; it is renamed to -stray", path)
    try:
        disk.rename(path, path.removesuffix(DELETED) + STRAY)
    except OSError as error:
        raise Damage(f"{path}: {error}") from error


def replace(world: World, current: Log, future: Log, source: LogDirectory, target: LogDirectory) -> None:
    """Replace the current replica with the future replica: `current` continues with the files of `future`.

    Both must have the same records. Waits for the disk. Raises Damage, in which case the failed log directory is
    offline.
    """
    disk, key = world.disk, (current.topic, current.partition)
    assert (current.end, current.written_end) == (future.end, future.written_end), "nothing is missing"
    name = target.futures[key]
    new, deleted = f"{target.path}/{key[0]}-{key[1]}", f"{source.path}/{name.removesuffix(FUTURE)}{DELETED}"
    try:
        if current.start > future.start:
            future.move_start(current.start)
        future.epochs.copy(current.epochs)
        if len(current.producers):  # all batches of a producer may have been deleted before they were copied
            future.files.write_snapshot(current.end, current.producers)
        future.sync_blocking()
        target.drop_stale(key)
    except OSError as error:
        raise future.fail(error) from error
    try:
        if current.files.made:
            disk.rename(current.directory, deleted)
            disk.sync_directory_blocking(source.path)
    except OSError as error:
        raise current.fail(error) from error
    old = current.files
    old.retire()
    old.renamed(deleted)
    future.files.renamed(new)
    current.replace_files(future)
    source.logs.pop(key)
    source.forget(key)
    del target.futures[key]
    target.logs[key] = current
    target.listen(current)
    try:
        if current.files.made:
            disk.rename(f"{target.path}/{name}", new)
            disk.sync_directory_blocking(target.path)
    except OSError as error:
        raise current.fail(error) from error
    if old.made:  # not earlier, because a start needs the old directory to detect an interrupted replacement
        source.garbage.add(world.steady_ms() + current.settings.file_delete_delay_ms, deleted)
