"""Future replicas: a log that is copied into another directory of its broker, and then takes the place of the first.

The copy is in `<topic>-<partition>.<hex>-future` (KIP-113). When it has all, and on disk, the current directory is
renamed to `<topic>-<partition>.<hex>-delete` and the copy to `<topic>-<partition>`, each made durable before the next.
The two share their number: a start that finds one of each, and no current one, ends what a crash has interrupted.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kpybroker.config import LogSettings
from kpybroker.errors import Damage
from kpybroker.storage.checkpoint_files import read_topic_id
from kpybroker.storage.garbage import DIRECTORY
from kpybroker.storage.log import Log
from kpybroker.storage.segment import TXN_INDEX, file_name
from kpybroker.world import Disk, World

if TYPE_CHECKING:
    from kpybroker.storage.log_dir import LogDirectory

log = logging.getLogger(__name__)

FUTURE = "-future"
_FUTURE = re.compile(r"(.+)-(\d{1,10})\.([0-9a-f]{32})-future")
NAME_LIMIT = 255
Key = tuple[str, int]


def futures_in(disk: Disk, path: str) -> dict[Key, str]:
    """The future replicas that a directory has, and the names of their directories. Raises OSError."""
    found = (_FUTURE.fullmatch(name) for name in disk.list(path) if name.endswith(FUTURE))
    return {(match[1], int(match[2])): match[0] for match in found if match is not None}


def is_too_long(topic: str, partition: int) -> bool:
    """No future replica of it could have a directory."""
    return len(f"{topic}-{partition}.{0:032x}{FUTURE}") > NAME_LIMIT


def finish_replacements(disk: Disk, paths: Sequence[str]) -> None:
    """End what a crash has interrupted between the two renames. Raises OSError."""
    names = {path: set(disk.list(path)) for path in paths}
    everywhere = set().union(*names.values())
    for path in paths:
        for (topic, index), name in futures_in(disk, path).items():
            current = f"{topic}-{index}"
            if current not in everywhere and f"{name.removesuffix(FUTURE)}{DIRECTORY}" in everywhere:
                log.warning("%s/%s takes the place of %s, as it was about to", path, name, current)
                disk.rename(f"{path}/{name}", f"{path}/{current}")
                disk.sync_directory_blocking(path)


def open_future(world: World, directory: LogDirectory, of: Log, settings: LogSettings) -> Log:
    """The future replica of a log in another directory, from before or new. Raises Damage, KAFKA_STORAGE_ERROR."""
    key = of.topic, of.partition
    assert of.topic_id is not None, "a hosted log has a topic id"
    name = directory.futures.get(key)
    try:
        if name is not None and read_topic_id(world.disk, f"{directory.path}/{name}") not in (None, of.topic_id):
            discard_future(world, directory, key, settings.file_delete_delay_ms)
            name = None
    except OSError as error:
        raise Damage(f"{directory.path}/{name}: {error}") from error
    if name is None:
        name = f"{of.topic}-{of.partition}.{world.random.getrandbits(128):032x}{FUTURE}"
        directory.futures[key] = name
    opened = directory.open_log(of.topic, of.topic_id, of.partition, settings)
    try:
        if not opened.made:
            opened.make()  # that the move is remembered from now on
    except OSError as error:
        raise opened.fail(error) from error
    return opened


def discard_future(world: World, directory: LogDirectory, key: Key, delay_ms: int) -> None:
    """Give a future replica up: its directory is renamed now and unlinked later. Raises OSError."""
    name = directory.futures.pop(key)
    opened = directory.logs.pop(key, None)
    if opened is not None:
        opened.offline = f"{opened!r} was given up"
        for segment in opened.segments:
            segment.retire()
    directory.forget(key)
    old = f"{directory.path}/{name}"
    if world.disk.exists(old):
        new = f"{directory.path}/{key[0]}-{key[1]}.{world.random.getrandbits(128):032x}{DIRECTORY}"
        world.disk.rename(old, new)
        directory.garbage.add(world.steady_ms() + delay_ms, new)


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
        future.syncing.blocking(future)
        target.drop_stale(key)
    except OSError as error:
        raise future.fail(error) from error
    try:
        if current.made:
            disk.rename(current.directory, deleted)
            disk.sync_directory_blocking(source.path)
    except OSError as error:
        raise current.fail(error) from error
    for segment in current.segments:
        segment.retire()
    was_made = current.made
    _adopt(current, future, new)
    source.logs.pop(key)
    source.forget(key)
    del target.futures[key]
    target.logs[key] = current
    target.listen(current)
    if was_made:
        source.garbage.add(world.steady_ms() + current.settings.file_delete_delay_ms, deleted)
    try:
        if current.made:
            disk.rename(f"{target.path}/{name}", new)
            disk.sync_directory_blocking(target.path)
    except OSError as error:
        raise current.fail(error) from error


def _adopt(current: Log, future: Log, directory: str) -> None:
    """From now on the files are the other's. What is in memory of producers stays: it knows of more than files do."""
    was_syncing, end = current.syncing, current.written_end
    for segment in future.segments:
        segment.path = f"{directory}/{file_name(segment.base_offset, '')}"
        segment.aborted.moved(segment.path + TXN_INDEX)
    future.epochs.moved(directory)
    future.syncing.generation = was_syncing.generation + 1  # a cleaning under way was of the other files
    current.directory, current.made, current.pool = directory, future.made, future.pool
    current.segments, current.epochs, current.syncing = future.segments, future.epochs, future.syncing
    current.device = future.device
    current.reader, current.snapshot_end = future.reader, future.snapshot_end
    current.garbage, current.cleaned_end, current.changed = future.garbage, 0, True
    was_syncing.synced_end = end  # for whoever waits there: all of it is on disk
