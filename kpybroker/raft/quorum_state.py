"""`quorum-state`: the vote and the epoch a node must not forget (KIP-595, data version 1 of KIP-853)."""

from __future__ import annotations

import json

from kpybroker.errors import Damage
from kpybroker.raft.core import Voted
from kpybroker.storage.directory import encode_id, write_whole
from kpybroker.world import World

NAME = "quorum-state"
DATA_VERSION = 1
FILE_LIMIT_BYTES = 1 << 20
NO_DIRECTORY = bytes(16)


def read_quorum_state(world: World, directory: str) -> Voted:
    """What the file says; the beginning where there is none. Raises Damage."""
    path = f"{directory}/{NAME}"
    if not world.disk.exists(path):
        return Voted()
    handle = world.disk.open(path)
    try:
        text = world.disk.pread(handle, FILE_LIMIT_BYTES, 0)
    finally:
        world.disk.close(handle)
    try:
        told = json.loads(text)
        version = told["data_version"]
        voted = Voted(int(told["leaderEpoch"]), int(told["leaderId"]), int(told["votedId"]))
    except (ValueError, KeyError, TypeError) as error:
        raise Damage(f"{path} is unreadable: {error}") from error
    if version not in (0, DATA_VERSION):
        raise Damage(f"{path} has data_version {version}; this broker reads 0 and 1")
    return voted


def write_quorum_state(world: World, directory: str, voted: Voted, voted_directory: bytes = NO_DIRECTORY) -> None:
    """Replace the file, on disk when this returns."""
    told = {
        "leaderId": voted.leader_id,
        "leaderEpoch": voted.epoch,
        "votedId": voted.voted_id,
        "votedDirectoryId": encode_id(voted_directory),
        "data_version": DATA_VERSION,
    }
    write_whole(world, f"{directory}/{NAME}", json.dumps(told, separators=(",", ":")).encode())
    world.disk.sync_directory_blocking(directory)
