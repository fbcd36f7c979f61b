"""Formats an empty log directory with the same files as `kafka-storage format`, except for times and random ids.

- `bootstrap.checkpoint` contains the initial features of the cluster (KIP-778).
- `__cluster_metadata-0/00000000000000000000-0000000000.checkpoint` contains the initial voters, if the quorum can
  change its voters (KIP-853).
- `meta.properties` contains the ids of the cluster and the node. It is written last: if it exists, the directory counts
  as formatted.
"""

from __future__ import annotations

import base64
import binascii
import errno
import logging
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from kpybroker.errors import Damage
from kpybroker.topics import METADATA_TOPIC
from kpybroker.wire.records.snapshot import (
    KRAFT_VERSION,
    KRAFT_VOTERS,
    Row,
    control_record,
    decode_snapshot,
    encode_snapshot,
)
from kpybroker.wire.stored import quorum
from kpybroker.wire.stored.metadata import FeatureLevelRecord, UserScramCredentialRecord
from kpybroker.world import World

log = logging.getLogger(__name__)

META_PROPERTIES = "meta.properties"
BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
METADATA_DIRECTORY = f"{METADATA_TOPIC}-0"
FIRST_CHECKPOINT = "00000000000000000000-0000000000.checkpoint"
FILE_LIMIT_BYTES = 1 << 20
NEW_VOTER = "new-voter"
"""A file that only kpybroker writes. While it exists, this voter has not caught up with the quorum since the directory
was created. See `raft.log.new_voter`."""
NEW_VOTER_TEXT = b"""\
This node is one of the voters of a metadata quorum, and has not caught up with it since this directory was created. If
it had another directory before, its vote and its records have been lost. Therefore it votes only to form a new cluster.
The broker removes this file when it has caught up with a leader.

If no leader can be elected without the vote of this node, because other voters are lost permanently, remove this file
while the broker is stopped. Records that only the lost voters had are lost in that case.
"""


FirstVoter = tuple[int, bytes, tuple[str, str, int]]
"""The node id and directory id of a voter, and its controller endpoint: name, host and port."""


class Format(NamedTuple):
    """The values for formatting an empty directory.

    - voter: the controller endpoint (name, host, port) of the only initial voter, as with `--standalone`; otherwise
      None.
    - voters: the initial voters (node id, directory id, endpoint), as with `--initial-controllers`. Without `voter` and
      `voters`, the directory is formatted as with `--no-initial-controllers`, or for kraft.version 0.
    - cluster_id: the cluster id that every directory must have, whether or not it is formatted; None for any.
    - new_cluster_id: the cluster id to use if no directory has one; None for a random id.
    - unclear: the reason why an empty directory cannot be formatted, if there is one.
    - is_one_of_several: whether the settings contain several voters including this node. If so, the node may have been
      a voter before its directory was lost.
    """

    features: Mapping[str, int]
    voter: tuple[str, str, int] | None
    cluster_id: str | None = None
    new_cluster_id: str | None = None
    voters: tuple[FirstVoter, ...] = ()
    unclear: str | None = None
    is_one_of_several: bool = False
    credentials: tuple[UserScramCredentialRecord, ...] = ()
    """The SCRAM credentials of the initial users of a new cluster."""

    def directory_id(self, node_id: int) -> bytes | None:
        """The directory id that a node must have; None if any id is allowed."""
        return next((directory_id for node, directory_id, _ in self.voters if node == node_id), None)


def encode_id(raw: bytes) -> str:
    """A UUID in Kafka's notation: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode_id(text: str) -> bytes:
    """The 16 bytes of a UUID in Kafka's notation. Raises ValueError."""
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{text!r} is not a uuid") from None
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a uuid")
    return raw


def random_id(random: Random) -> bytes:
    """A random UUID that does not begin with a dash in Kafka's notation. Because of its version (4), it is not one of
    the reserved ids."""
    while True:
        number = random.getrandbits(128) & ~(0xF << 76) | (4 << 76)
        raw = (number & ~(0x3 << 62) | (0x2 << 62)).to_bytes(16, "big")
        if not encode_id(raw).startswith("-"):
            return raw


def format_directory(
    world: World,
    path: str,
    *,
    node_id: int,
    cluster_id: str,
    directory_id: bytes,
    wanted: Format,
    has_metadata: bool,
) -> None:
    """Write the files of a new directory, durably. Raises OSError.

    After a crash, a directory that is only partly formatted counts as empty and is formatted again.
    """
    now_ms = world.wall_ms()
    levels = [FeatureLevelRecord(name=name, feature_level=level) for name, level in wanted.features.items()]
    bootstrap = encode_snapshot([*levels, *wanted.credentials], epoch=0, now_ms=now_ms, last_timestamp_ms=0)
    write_whole(world, f"{path}/{BOOTSTRAP_CHECKPOINT}", b"".join(bootstrap))
    voters = wanted.voters if wanted.voter is None else ((node_id, directory_id, wanted.voter),)
    if has_metadata and voters:
        world.disk.mkdir(f"{path}/{METADATA_DIRECTORY}")
        control = voter_records(voters)
        first = encode_snapshot([], epoch=0, now_ms=now_ms, last_timestamp_ms=now_ms, control=control)
        write_whole(world, f"{path}/{METADATA_DIRECTORY}/{FIRST_CHECKPOINT}", b"".join(first))
        world.disk.sync_directory_blocking(f"{path}/{METADATA_DIRECTORY}")
    if has_metadata and wanted.is_one_of_several:
        write_whole(world, f"{path}/{NEW_VOTER}", NEW_VOTER_TEXT)
    meta = f"node.id={node_id}\ndirectory.id={encode_id(directory_id)}\nversion=1\ncluster.id={cluster_id}\n"
    write_whole(world, f"{path}/{META_PROPERTIES}", meta.encode())
    world.disk.sync_directory_blocking(path)
    _sync_names_above(world, path)


def hide_secrets(world: World, metadata_directory: str) -> None:
    """Make files with secrets (keys of users, tokens, settings) unreadable for other users of the machine.

    These files are the metadata log with its snapshots, and bootstrap.checkpoint. Another program or an earlier version
    may have created them.
    """
    for path in (metadata_directory, f"{metadata_directory.rpartition('/')[0]}/{BOOTSTRAP_CHECKPOINT}"):
        try:
            world.disk.hide(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning(
                "%s contains secrets, and every user of this machine may read it: %s; run: chmod o-rwx %s",
                path,
                error.strerror or error,
                path,
            )


NOT_OURS = (errno.EACCES, errno.EPERM, errno.EINVAL)
"""With these errors, a parent directory cannot be read or is not on a disk (/proc), so this broker has not created
it."""


def _sync_names_above(world: World, path: str) -> None:
    """Sync the name of the directory, and the names of parent directories that were created with it."""
    while (path := path.rpartition("/")[0]) != "":
        try:
            world.disk.sync_directory_blocking(path)
        except OSError as error:
            if error.errno in NOT_OURS:
                return
            raise
    world.disk.sync_directory_blocking("/")


def voter_records(first: Sequence[FirstVoter]) -> list[Row]:
    """The control records of a quorum with these voters (kraft.version 1)."""
    voters = quorum.VotersRecord(
        voters=[
            quorum.RegisteredVoter(
                voter_id=node_id,
                voter_directory_id=directory_id,
                endpoints=[quorum.Endpoint(name=name, host=host, port=port)],
                kraft_version_feature=quorum.KRaftVersionFeature(min_supported_version=0, max_supported_version=1),
            )
            for node_id, directory_id, (name, host, port) in sorted(first)
        ],
    )
    version = quorum.KRaftVersionRecord(kraft_version=1)
    return [control_record(KRAFT_VERSION, version), control_record(KRAFT_VOTERS, voters)]


def read_bootstrap(world: World, path: str) -> list[Any] | None:
    """The initial metadata records of a new cluster; None if the file does not exist. Raises Damage."""
    where = f"{path}/{BOOTSTRAP_CHECKPOINT}"
    if not world.disk.exists(where):
        return None
    return decode_snapshot(read_whole(world, where), where)[0]


def write_whole(world: World, path: str, data: bytes) -> None:
    """Replace a file atomically. The contents are on disk on return, and the name when the directory is synced.
    Raises OSError."""
    beside = f"{path}.tmp"
    handle = world.disk.open(beside, create=True)
    try:
        world.disk.truncate(handle, 0)
        world.disk.pwritev(handle, [data], 0)
        world.disk.sync_blocking(handle)
    finally:
        world.disk.close(handle)
    world.disk.rename(beside, path)


def read_whole(world: World, path: str) -> bytes:
    """Read a small file, which may wait for the disk. Raises OSError, and Damage if the file has more than 1 MiB."""
    handle = world.disk.open(path)
    try:
        size = world.disk.size(handle)
        if size > FILE_LIMIT_BYTES:
            raise Damage(f"{path}: {size} bytes are too many for such a file")
        return world.disk.pread(handle, size, 0)
    finally:
        world.disk.close(handle)
