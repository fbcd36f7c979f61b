"""Future replicas: a log that is copied into another directory of its broker, and then takes the place of the first.

The copy is in `<topic>-<partition>.<hex>-future` (KIP-113). When it has all, and on disk, the current directory is
renamed to `<topic>-<partition>.<hex>-delete` and the copy to `<topic>-<partition>`, each made durable before the next.
The two share their number: a start that finds one of each, and no current one, ends what a crash or an error has
interrupted. So nothing deletes the first before the second has its name on disk.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from kpybroker.config import LogSettings
from kpybroker.errors import Damage
from kpybroker.storage.dirs.garbage import DIRECTORY
from kpybroker.storage.files.checkpoint_files import read_topic_id
from kpybroker.storage.files.segment import LOG, file_name
from kpybroker.storage.log.log import Log
from kpybroker.world import Disk, World

if TYPE_CHECKING:
    from kpybroker.storage.dirs.log_dir import LogDirectory

log = logging.getLogger(__name__)

FUTURE, STRAY = "-future", "-stray"
_FUTURE, _DELETED = (re.compile(rf"(.+)-(\d{{1,10}})\.([0-9a-f]{{32}}){ending}") for ending in (FUTURE, DIRECTORY))
NAME_LIMIT = 255
Key = tuple[str, int]


def futures_in(disk: Disk, path: str) -> dict[Key, str]:
    """The future replicas that a directory has, and the names of their directories. Raises OSError.

    One beside the current replica is what a move that was called off has left: it is passed over.
    """
    names = disk.list(path)
    found = (_FUTURE.fullmatch(name) for name in names if name.endswith(FUTURE))
    futures = {(match[1], int(match[2])): match[0] for match in found if match is not None}
    for topic, index in [key for key in futures if f"{key[0]}-{key[1]}" in names]:
        log.warning("%s/%s is of no use and can be deleted", path, futures.pop((topic, index)))
    return futures


def is_too_long(topic: str, partition: int) -> bool:
    """No future replica of it could have a directory."""
    return len(f"{topic}-{partition}.{0:032x}{FUTURE}") > NAME_LIMIT


def key_of_deleted(name: str) -> Key | None:
    """The partition of which a `-delete` directory was; None where its name was cut short, as no moved one's is."""
    match = _DELETED.fullmatch(name)
    return None if match is None else (match[1], int(match[2]))


def topic_id_in(disk: Disk, log_path: str) -> bytes | None:
    """None where nothing tells."""
    try:
        return read_topic_id(disk, log_path)
    except (Damage, OSError):
        return None


def _has_records(disk: Disk, path: str, topic_id: bytes) -> bool:
    """Whether a log in a directory has records of this topic, or had some and begins above 0. Raises OSError."""
    if not disk.exists(path) or topic_id_in(disk, path) not in (topic_id, None):
        return False
    logs = (name for name in disk.list(path) if name.endswith(LOG))
    return any(name != file_name(0, LOG) or disk.path_size(f"{path}/{name}") for name in logs)


def finish_replacements(disk: Disk, names: Mapping[str, Collection[str]]) -> dict[str, str]:
    """End what was interrupted between the two renames. `names`: what each directory has, by path.

    Returns why directories have failed at it, by path: there the future replica is not, or not for sure, in its place.
    """
    everywhere = set().union(*names.values())
    failed: dict[str, str] = {}
    for path, name in [(each, name) for each, there in names.items() for name in sorted(there)]:
        match = _FUTURE.fullmatch(name)
        if match is None or path in failed:
            continue
        current = f"{match[1]}-{match[2]}"
        if current in everywhere or f"{name.removesuffix(FUTURE)}{DIRECTORY}" not in everywhere:
            continue
        log.warning("%s/%s takes the place of %s, as it was about to", path, name, current)
        try:
            disk.rename(f"{path}/{name}", f"{path}/{current}")
            disk.sync_directory_blocking(path)
        except OSError as error:
            failed[path] = f"cannot rename {path}/{name} to {current}: {error.strerror or error}"
    return failed


def open_future(world: World, directory: LogDirectory, of: Log, settings: LogSettings) -> Log:
    """The future replica of a log in another directory, from before or new. Raises Damage, KAFKA_STORAGE_ERROR."""
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
        name = f"{of.topic}-{of.partition}.{world.random.getrandbits(128):032x}{FUTURE}"
        directory.futures[key] = name
    opened = directory.open_log(of.topic, topic_id, of.partition, settings)
    try:
        if not opened.files.made:
            opened.files.make()  # that the move is remembered from now on
    except OSError as error:
        raise opened.fail(error) from error
    return opened


def discard_future(world: World, directory: LogDirectory, key: Key, delay_ms: int, *, is_kept: bool = False) -> None:
    """Give a future replica up: its directory is renamed now, and unlinked later or kept. Raises OSError."""
    name = directory.futures[key]
    opened = directory.logs.pop(key, None)
    if opened is not None:
        opened.retire(f"{opened!r} was given up")
    directory.forget(key)
    old = f"{directory.path}/{name}"
    if world.disk.exists(old):
        ending = STRAY if is_kept else DIRECTORY
        new = f"{directory.path}/{key[0]}-{key[1]}.{world.random.getrandbits(128):032x}{ending}"
        world.disk.rename(old, new)
        if not is_kept:
            directory.garbage.add(world.steady_ms() + delay_ms, new)
    del directory.futures[key]


def refuse_lone_copy(disk: Disk, directory: LogDirectory, key: Key, topic_id: bytes) -> None:
    """A log would be made anew in a directory that is in use, and its future replica be cut to nothing.

    Raises Damage where that one has records: a person says whether to take it.
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


def set_copy_aside(world: World, directory: LogDirectory, key: Key, topic_id: bytes) -> None:
    """A log is made anew, and its future replica is of no use: with records it is kept (`-stray`). Raises Damage."""
    path = f"{directory.path}/{directory.futures[key]}"
    try:
        is_kept = _has_records(world.disk, path, topic_id)
        if is_kept:
            log.error("%s is an unfinished copy of a replica that is lost, and becomes a -stray", path)
        discard_future(world, directory, key, 0, is_kept=is_kept)
    except OSError as error:
        raise Damage(f"{path}: {error}") from error


def set_half_aside(disk: Disk, path: str) -> None:
    """What a replica was before it moved, and it is nowhere now: it is kept (`-stray`). Raises Damage."""
    log.error("%s is a replica that had moved, and it is not where it moved to; it becomes a -stray", path)
    try:
        disk.rename(path, path.removesuffix(DIRECTORY) + STRAY)
    except OSError as error:
        raise Damage(f"{path}: {error}") from error


def replace(world: World, current: Log, future: Log, source: LogDirectory, target: LogDirectory) -> None:
    """The future replica takes the place of the current one, and of its files; `current` goes on with them.

    Both have the same records. Waits for the disk. Raises Damage; the directory that has failed is offline then.
    """
    disk, key = world.disk, (current.topic, current.partition)
    assert (current.end, current.written_end) == (future.end, future.written_end), "nothing is missing"
    name = target.futures[key]
    new, deleted = f"{target.path}/{key[0]}-{key[1]}", f"{source.path}/{name.removesuffix(FUTURE)}{DIRECTORY}"
    try:
        if current.start > future.start:
            future.move_start(current.start)
        future.epochs.copy(current.epochs)
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
    if old.made:  # and not before: without it a start would not know what the copy is
        source.garbage.add(world.steady_ms() + current.settings.file_delete_delay_ms, deleted)
