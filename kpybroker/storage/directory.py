"""A log directory's identity: what `kafka-storage format` writes, the lock, and who may open it.

`meta.properties` (version 1) says whose directory it is; `bootstrap.checkpoint` with which features its cluster begins;
`__cluster_metadata-0/00000000000000000000-0000000000.checkpoint` who votes (KIP-853). Source: KIP-858, KIP-778.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from kpybroker.errors import ConfigError
from kpybroker.wire.batch import Record
from kpybroker.wire.snapshot import KRAFT_VERSION, KRAFT_VOTERS, control_record, encode_snapshot
from kpybroker.wire.stored import quorum
from kpybroker.wire.stored.metadata import FeatureLevelRecord
from kpybroker.world import World

META_PROPERTIES = "meta.properties"
BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
METADATA_TOPIC = "__cluster_metadata"
METADATA_DIRECTORY = f"{METADATA_TOPIC}-0"
FIRST_CHECKPOINT = "00000000000000000000-0000000000.checkpoint"
LOCK = ".lock"
FILE_LIMIT_BYTES = 1 << 20
RESERVED_IDS = 100
"""Uuids below this number have meanings of their own."""


@dataclass(frozen=True, slots=True)
class Directory:
    """An opened directory; `lock` is the handle that keeps others out."""

    path: str
    directory_id: bytes
    cluster_id: str
    node_id: int
    lock: int


@dataclass(frozen=True, slots=True)
class Format:
    """With what an empty directory is formatted. `voter`: the controller endpoint (name, host, port) of the one voter."""

    features: Mapping[str, int]
    voter: tuple[str, str, int] | None
    cluster_id: str | None = None


def encode_id(raw: bytes) -> str:
    """A uuid as Kafka prints it: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode_id(text: str) -> bytes:
    """The 16 bytes of a printed uuid. Raises ValueError."""
    try:
        raw = base64.urlsafe_b64decode(text + "==")
    except (binascii.Error, ValueError):
        raise ValueError(f"{text!r} is not a uuid") from None
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a uuid")
    return raw


def random_id(random: Random) -> bytes:
    """A random uuid (version 4), never reserved, and never one that starts with a dash where it is printed."""
    while True:
        number = random.getrandbits(128) & ~(0xF << 76) | (4 << 76)
        raw = (number & ~(0x3 << 62) | (0x2 << 62)).to_bytes(16, "big")
        if number >= RESERVED_IDS and not encode_id(raw).startswith("-"):
            return raw


def open_directories(world: World, paths: Sequence[str], node_id: int, wanted: Format) -> list[Directory]:
    """Lock every directory and check that it is this node's; format the empty ones. The first holds the metadata log.

    Raises ConfigError: not writable, in use, of another node or cluster, of a newer format.
    """
    opened: list[Directory] = []
    cluster_id = wanted.cluster_id
    try:
        for path in paths:
            lock = _lock(world, path)
            try:
                directory = _open(world, path, node_id, cluster_id, lock)
                if directory is None:
                    directory = _format(world, path, node_id, cluster_id, wanted, lock, is_first=not opened)
            except ConfigError:
                world.disk.close(lock)
                raise
            cluster_id = directory.cluster_id
            opened.append(directory)
    except ConfigError:
        for directory in opened:
            world.disk.close(directory.lock)
        raise
    return opened


def _lock(world: World, path: str) -> int:
    try:
        world.disk.mkdir(path)
        return world.disk.lock(f"{path}/{LOCK}")
    except BlockingIOError:
        raise ConfigError(
            f"{path} is in use by another broker; stop that one, or give this one a directory of its own (log.dirs)"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot write to {path}: {error.strerror or error}; choose a writable log.dirs") from error


def _open(world: World, path: str, node_id: int, cluster_id: str | None, lock: int) -> Directory | None:
    where = f"{path}/{META_PROPERTIES}"
    if not world.disk.exists(where):
        others = [name for name in world.disk.list(path) if name != LOCK and name.startswith("__cluster_metadata")]
        if others:
            raise ConfigError(
                f"{path} has a metadata log but no {META_PROPERTIES}; restore that file, nothing was touched"
            )
        return None
    found = _properties(_read(world, where).decode("utf-8", "replace"))
    version = found.get("version")
    if version != "1":
        raise ConfigError(f"{where} has version {version}; this broker reads version 1, nothing was touched")
    their_node = found.get("node.id", "")
    if their_node != str(node_id):
        raise ConfigError(
            f"{path} belongs to node {their_node}, and this is node {node_id}; set node.id={their_node} or another log.dirs"
        )
    their_cluster = found.get("cluster.id", "")
    if not their_cluster or (cluster_id is not None and their_cluster != cluster_id):
        raise ConfigError(
            f"{path} belongs to cluster {their_cluster or '?'}, and this is cluster {cluster_id}; choose another log.dirs"
        )
    try:
        directory_id = decode_id(found.get("directory.id", ""))
    except ValueError as error:
        raise ConfigError(f"{where}: directory.id: {error}; restore the file, nothing was touched") from None
    return Directory(path, directory_id, their_cluster, node_id, lock)


def _format(
    world: World, path: str, node_id: int, cluster_id: str | None, wanted: Format, lock: int, *, is_first: bool
) -> Directory:
    cluster_id = cluster_id or encode_id(random_id(world.random))
    directory = Directory(path, random_id(world.random), cluster_id, node_id, lock)
    now_ms = world.wall_ms()
    levels = [FeatureLevelRecord(name=name, feature_level=level) for name, level in wanted.features.items()]
    try:
        if is_first:
            bootstrap = encode_snapshot(levels, epoch=0, now_ms=now_ms, last_timestamp_ms=0)
            write_whole(world, f"{path}/{BOOTSTRAP_CHECKPOINT}", b"".join(bootstrap))
            if wanted.voter is not None:
                world.disk.mkdir(f"{path}/{METADATA_DIRECTORY}")
                control = voter_records(directory, wanted.voter, now_ms)
                first = encode_snapshot([], epoch=0, now_ms=now_ms, last_timestamp_ms=now_ms, control=control)
                write_whole(world, f"{path}/{METADATA_DIRECTORY}/{FIRST_CHECKPOINT}", b"".join(first))
        meta = (
            f"node.id={node_id}\ndirectory.id={encode_id(directory.directory_id)}\nversion=1\ncluster.id={cluster_id}\n"
        )
        write_whole(world, f"{path}/{META_PROPERTIES}", meta.encode())
        world.disk.sync_directory_blocking(path)
    except OSError as error:
        raise ConfigError(f"cannot format {path}: {error.strerror or error}; choose a writable log.dirs") from error
    return directory


def voter_records(directory: Directory, endpoint: tuple[str, str, int], now_ms: int) -> list[Record]:
    """The control records of a quorum whose one voter is this directory's node (kraft.version 1)."""
    name, host, port = endpoint
    voters = quorum.VotersRecord(
        version=0,
        voters=[
            quorum.RegisteredVoter(
                voter_id=directory.node_id,
                voter_directory_id=directory.directory_id,
                endpoints=[quorum.Endpoint(name=name, host=host, port=port)],
                k_raft_version_feature=quorum.KRaftVersionFeature(min_supported_version=0, max_supported_version=1),
            )
        ],
    )
    version = quorum.KRaftVersionRecord(version=0, k_raft_version=1)
    return [control_record(KRAFT_VERSION, version, now_ms), control_record(KRAFT_VOTERS, voters, now_ms)]


def write_whole(world: World, path: str, data: bytes) -> None:
    """Replace a file at once and durably, but for the directory's own sync."""
    partial = f"{path}.tmp"
    handle = world.disk.open(partial, create=True)
    try:
        world.disk.truncate(handle, 0)
        world.disk.pwritev(handle, [data], 0)
        world.disk.sync_blocking(handle)
    finally:
        world.disk.close(handle)
    world.disk.rename(partial, path)


def _read(world: World, path: str) -> bytes:
    handle = world.disk.open(path)
    try:
        return world.disk.pread(handle, FILE_LIMIT_BYTES, 0)
    finally:
        world.disk.close(handle)


def _properties(text: str) -> dict[str, str]:
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#!")
    return {name.strip(): value.strip().replace("\\:", ":").replace("\\=", "=") for name, _, value in pairs}
