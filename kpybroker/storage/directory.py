"""A log directory's identity: the lock, and whose it is. Empty ones are formatted (`formatting`). Source: KIP-858."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kpybroker.errors import ConfigError, Damage
from kpybroker.storage.formatting import (
    BOOTSTRAP_CHECKPOINT,
    FIRST_CHECKPOINT,
    META_PROPERTIES,
    METADATA_DIRECTORY,
    METADATA_TOPIC,
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
    "METADATA_TOPIC",
    "Directory",
    "Format",
    "decode_id",
    "encode_id",
    "open_directories",
    "random_id",
    "read_whole",
    "write_whole",
]

LOCK = ".lock"
TORN = {f"{name}.tmp" for name in (BOOTSTRAP_CHECKPOINT, NEW_VOTER, META_PROPERTIES)}
BEGUN = {LOCK, BOOTSTRAP_CHECKPOINT, NEW_VOTER, *TORN, "lost+found"}
"""What may be in a directory that is not formatted yet: a format that was interrupted, a fresh volume."""


class Directory(NamedTuple):
    """An opened directory; `lock` is the handle that keeps others out."""

    path: str
    directory_id: bytes
    cluster_id: str
    node_id: int
    lock: int


def open_directories(world: World, paths: Sequence[str], node_id: int, wanted: Format) -> list[Directory]:
    """Lock every directory and check that it is this node's; format the empty ones. The first holds the metadata log.

    Raises ConfigError, and then has let all locks go: not writable, in use, of another node or cluster, of a newer
    format, garbled. Nothing that was stored is touched.
    """
    locks: list[int] = []
    opened = False
    try:
        for path in paths:
            locks.append(_lock(world, path))
        directories = _open_all(world, paths, node_id, wanted, locks)
        opened = True
        return directories
    finally:
        if not opened:
            for lock in locks:
                world.disk.close(lock)


def _open_all(world: World, paths: Sequence[str], node_id: int, wanted: Format, locks: list[int]) -> list[Directory]:
    """All are checked before the first one is formatted."""
    found = [_read(world, path, node_id, lock) for path, lock in zip(paths, locks, strict=True)]
    cluster_id = wanted.cluster_id
    ids: dict[bytes, str] = {}
    for directory in found:
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
    if found[0] is None and any(found):
        raise ConfigError(
            f"{paths[0]} is empty, and the metadata log belongs there; name the directory that has "
            f"{METADATA_DIRECTORY} first in log.dirs, or restore it"
        )
    if found[0] is None and wanted.unclear is not None:
        raise ConfigError(f"{paths[0]} is empty: {wanted.unclear}")
    cluster_id = cluster_id or wanted.new_cluster_id or encode_id(random_id(world.random))
    made = []
    for number, (path, lock, directory) in enumerate(zip(paths, locks, found, strict=True)):
        if directory is None:
            directory_id = (wanted.directory_id(node_id) if number == 0 else None) or random_id(world.random)
            directory = Directory(path, directory_id, cluster_id, node_id, lock)
            _format(world, directory, wanted, has_metadata=number == 0)
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
        raise ConfigError(
            f"{path} is in use by another broker; stop that one, or give this one a directory of its own (log.dirs)"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"cannot write to {path}: {error.strerror or error}; choose a writable one with log.dirs or --data-dir"
        ) from error


def _read(world: World, path: str, node_id: int, lock: int) -> Directory | None:
    """What `meta.properties` says; None where the directory is yet to be formatted. The node is checked."""
    where = f"{path}/{META_PROPERTIES}"
    try:
        if not world.disk.exists(where):
            _check_unused(world, path)
            return None
        found = _properties(read_whole(world, where).decode("utf-8", "replace"))
    except (OSError, Damage) as error:
        raise ConfigError(f"cannot read {where}: {error}; restore it, nothing was touched") from error
    version = found.get("version")
    if version != "1":
        raise ConfigError(f"{where} has version {version}, and version 1 is known here; nothing was touched")
    their_node = found.get("node.id", "")
    if their_node != str(node_id):
        raise ConfigError(
            f"{path} belongs to node {their_node}, and this is node {node_id}; set node.id={their_node}, or choose "
            "another directory (log.dirs)"
        )
    cluster_id = found.get("cluster.id", "")
    if not cluster_id:
        raise ConfigError(f"{where} lacks cluster.id; restore the file, nothing was touched")
    try:
        directory_id = decode_id(found.get("directory.id", ""))
    except ValueError as error:
        raise ConfigError(f"{where}: directory.id: {error}; restore the file, nothing was touched") from None
    return Directory(path, directory_id, cluster_id, node_id, lock)


def _check_unused(world: World, path: str) -> None:
    """Without meta.properties nobody knows whose partitions these are: formatting would give them up."""
    for name in world.disk.list(path):
        inside = f"{path}/{name}"
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
                "directory (log.dirs); nothing was touched"
            )


def _properties(text: str) -> dict[str, str]:
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#!")
    return {name.strip(): value.strip().replace("\\:", ":").replace("\\=", "=") for name, _, value in pairs}
