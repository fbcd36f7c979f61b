"""Locks log directories, checks their identity (meta.properties), and formats empty ones. Source: KIP-858."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from kpybroker.errors import ConfigError, Damage
from kpybroker.storage.dirs.formatting import (
    BOOTSTRAP_CHECKPOINT,
    FIRST_CHECKPOINT,
    META_PROPERTIES,
    METADATA_DIRECTORY,
    NEW_VOTER,
    Format,
    decode_id,
    encode_id,
    format_directory,
    random_id,
    read_whole,
    write_whole,
)
from kpybroker.world import World

__all__ = [
    "METADATA_DIRECTORY",
    "Directory",
    "Format",
    "decode_id",
    "encode_id",
    "folds_case",
    "open_directories",
    "random_id",
    "read_properties",
    "read_whole",
    "write_whole",
]

LOCK = ".lock"
TORN = {f"{name}.tmp" for name in (BOOTSTRAP_CHECKPOINT, NEW_VOTER, META_PROPERTIES)}
BEGUN = {LOCK, BOOTSTRAP_CHECKPOINT, NEW_VOTER, *TORN, "lost+found"}
"""Files that an unformatted directory may contain, because they are left over from an interrupted format or are part of
a new volume."""

FURTHER_NODE = re.compile(r"broker\.([0-9]{1,10})")
"""The directory of another broker of `serve --brokers`, which is never that of a partition."""


class Directory(NamedTuple):
    """An opened log directory. `lock` is the handle of its lock file."""

    path: str
    directory_id: bytes
    cluster_id: str
    node_id: int
    lock: int


class InUse(ConfigError):
    """Another process has locked the directory."""


class Failed(ConfigError):
    """The device of a directory has failed. The broker may continue with other directories."""


def open_directories(
    world: World, paths: Sequence[str], node_id: int, wanted: Format, failed: dict[str, str] | None = None
) -> list[Directory]:
    """Lock every directory, check that it belongs to this node, and format empty directories.

    The first directory contains the metadata log. If `failed` is given, other directories whose device fails are
    omitted and added to `failed` with the reason.

    Raises ConfigError, after releasing all locks, if a directory is not writable, in use, damaged, of a newer format,
    or belongs to another node or cluster. Stored files are not changed in that case.
    """
    locks: dict[str, int] = {}
    found: dict[str, Directory | None] = {}
    opened = False
    try:
        for path in paths:
            try:
                locks[path] = _lock(world, path)
                found[path] = _read(world, path, node_id, locks[path])
            except Failed as error:
                if failed is None or path == paths[0]:
                    raise
                failed[path] = str(error)
                if path in locks:
                    world.disk.close(locks.pop(path))
        directories = _open_all(world, found, node_id, wanted, locks)
        opened = True
        return directories
    finally:
        if not opened:
            for lock in locks.values():
                world.disk.close(lock)


def folds_case(world: World, path: str) -> bool:
    """Whether the file system of an opened directory ignores the case of names, which is the default on macOS."""
    return world.disk.exists(f"{path}/{LOCK.upper()}") and LOCK.upper() not in world.disk.list(path)


def is_formatted(world: World, path: str) -> bool:
    """Whether the directory is formatted. True if it cannot be read: opening it will raise the error."""
    try:
        return world.disk.exists(f"{path}/{META_PROPERTIES}")
    except OSError:
        return True


def _open_all(
    world: World, found: dict[str, Directory | None], node_id: int, wanted: Format, locks: dict[str, int]
) -> list[Directory]:
    """Check all directories, and then format the empty ones."""
    cluster_id = wanted.cluster_id
    metadata = next(iter(found))
    ids: dict[bytes, str] = {}
    for directory in found.values():
        if directory is None:
            continue
        if cluster_id is not None and directory.cluster_id != cluster_id:
            raise ConfigError(
                f"{directory.path} belongs to cluster {directory.cluster_id}, and this is cluster {cluster_id}; "
                "choose another directory (log.dirs)"
            )
        cluster_id = directory.cluster_id
        twin = ids.setdefault(directory.directory_id, directory.path)
        if twin != directory.path:
            raise ConfigError(f"{directory.path} and {twin} are copies of one directory; remove one from log.dirs")
    if found[metadata] is None and any(found.values()):
        raise ConfigError(
            f"{metadata} is empty, and the metadata log belongs there; set metadata.log.dir to the directory that "
            f"contains {METADATA_DIRECTORY}, or put it first in log.dirs, or restore it"
        )
    if found[metadata] is None and wanted.unclear is not None:
        raise ConfigError(f"{metadata} is empty: {wanted.unclear}")
    for path in found:
        if path != metadata and world.disk.exists(f"{path}/{METADATA_DIRECTORY}"):
            raise ConfigError(
                f"{path} has a metadata log, which is expected in {metadata}; set metadata.log.dir={path}, or remove "
                f"{METADATA_DIRECTORY} from {path}; nothing was changed"
            )
    cluster_id = cluster_id or wanted.new_cluster_id or encode_id(random_id(world.random))
    made = []
    for path, directory in found.items():
        if directory is None:
            is_first = path == metadata
            directory_id = (wanted.directory_id(node_id) if is_first else None) or random_id(world.random)
            directory = Directory(path, directory_id, cluster_id, node_id, locks[path])
            _format(world, directory, wanted, has_metadata=is_first)
        made.append(directory)
    return made


def _format(world: World, directory: Directory, wanted: Format, *, has_metadata: bool) -> None:
    try:
        format_directory(
            world,
            directory.path,
            node_id=directory.node_id,
            cluster_id=directory.cluster_id,
            directory_id=directory.directory_id,
            wanted=wanted,
            has_metadata=has_metadata,
        )
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"cannot format {directory.path}: {why}; make room, or choose another log.dirs") from error


def _lock(world: World, path: str) -> int:
    try:
        world.disk.mkdir(path)
        return world.disk.lock(f"{path}/{LOCK}")
    except BlockingIOError:
        raise InUse(
            f"{path} is in use by another broker; stop that one, or give this one a directory of its own (log.dirs)"
        ) from None
    except OSError as error:
        raise Failed(
            f"cannot write to {path}: {error.strerror or error}; choose a writable one with log.dirs or --data-dir"
        ) from error


def _read(world: World, path: str, node_id: int, lock: int) -> Directory | None:
    """Read and check `meta.properties`. Return None if the directory is not formatted yet."""
    where = f"{path}/{META_PROPERTIES}"
    try:
        if not world.disk.exists(where):
            _check_unused(world, path)
            return None
        found = read_properties(world, where)
    except OSError as error:
        raise Failed(f"cannot read {where}: {error}; restore it; nothing was changed") from error
    except Damage as error:
        raise ConfigError(f"cannot read {where}: {error}; restore it; nothing was changed") from error
    version = found.get("version")
    if version != "1":
        raise ConfigError(
            f"{where} has version {version}, but this kpybroker reads only version 1; nothing was changed"
        )
    their_node = found.get("node.id", "")
    if not their_node.isdecimal():
        raise ConfigError(f"{where} has no valid node.id ({their_node!r}); restore the file; nothing was changed")
    if their_node != str(node_id):
        raise ConfigError(
            f"{path} belongs to node {their_node}, and this is node {node_id}; set node.id={their_node}, or choose "
            "another directory (log.dirs)"
        )
    cluster_id = found.get("cluster.id", "")
    if not cluster_id:
        raise ConfigError(f"{where} lacks cluster.id; restore the file; nothing was changed")
    try:
        directory_id = decode_id(found.get("directory.id", ""))
    except ValueError as error:
        raise ConfigError(f"{where}: directory.id: {error}; restore the file; nothing was changed") from None
    return Directory(path, directory_id, cluster_id, node_id, lock)


def _check_unused(world: World, path: str) -> None:
    """Raise ConfigError if a directory without meta.properties contains partitions or other files. The cluster of such
    partitions is unknown, and they would be lost if the directory were formatted."""
    for name in world.disk.list(path):
        inside = f"{path}/{name}"
        if FURTHER_NODE.fullmatch(name):
            continue
        if name not in BEGUN and not name.rpartition("-")[2].isdecimal():
            raise ConfigError(
                f"{path} is not empty ({name}) and has no {META_PROPERTIES}: it is not a broker's; choose an empty "
                "directory (log.dirs)"
            )
        partition = name.rpartition("-")[2]
        if not partition.isdecimal() or not world.disk.is_directory(inside):
            continue
        leftovers = {FIRST_CHECKPOINT, f"{FIRST_CHECKPOINT}.tmp"} if name == METADATA_DIRECTORY else set()
        if not set(world.disk.list(inside)) <= leftovers:
            raise ConfigError(
                f"{path} has partitions ({name}) but no {META_PROPERTIES}; restore that file, or choose an empty "
                "directory (log.dirs); nothing was changed"
            )


def read_properties(world: World, where: str) -> dict[str, str]:
    """The properties in a `meta.properties` file. Raises OSError (FileNotFoundError if it does not exist), Damage."""
    text = read_whole(world, where).decode("utf-8", "replace")
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#!")
    return {name.strip(): value.strip().replace("\\:", ":").replace("\\=", "=") for name, _, value in pairs}
