"""Reads and writes the file `quorum-state`, which contains a node's epoch and vote (KIP-595; data version 1:
KIP-853)."""

from __future__ import annotations

import json
from typing import Any

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.raft.core.state import EPOCH_MAX, Voted
from kpybroker.raft.core.voter_set import NO_DIRECTORY
from kpybroker.storage.dirs.directory import decode_id, encode_id, read_whole, write_whole
from kpybroker.storage.files.file_pool import is_short
from kpybroker.world import World

QUORUM_STATE = "quorum-state"


def read_quorum_state(world: World, directory: str) -> tuple[Voted, tuple[int, ...]]:
    """Read the vote, and the voters of kraft.version 0. If there is no file, return the values of a new node. Raises
    Damage."""
    path = f"{directory}/{QUORUM_STATE}"
    if not world.disk.exists(path):
        return Voted(), ()
    try:
        told = json.loads(read_whole(world, path))
        version = int(told["data_version"])
        voted = Voted(int(told["leaderEpoch"]), int(told["leaderId"]), int(told["votedId"]), _directory(told))
        voters = tuple(int(row["voterId"]) for row in told.get("currentVoters") or ())
    except (ValueError, KeyError, TypeError) as error:
        raise Damage(f"{path} cannot be read: {error!r}") from error
    if version not in (0, 1):
        raise Damage(f"{path} has data_version {version}; only 0 and 1 are supported")
    if voted.epoch > EPOCH_MAX:
        raise Damage(f"{path} has leaderEpoch {voted.epoch}; the highest possible epoch is {EPOCH_MAX}")
    return voted, voters


def _directory(told: Any) -> bytes:
    found = decode_id(told.get("votedDirectoryId") or encode_id(NO_DIRECTORY))
    return b"" if found == NO_DIRECTORY else found


def write_quorum_state(world: World, directory: str, voted: Voted, static_voters: tuple[int, ...] = ()) -> None:
    """Replace the file, and sync it. `static_voters` has the voters of kraft.version 0, and is empty for later
    versions.

    Raises OSError, or KAFKA_STORAGE_ERROR if no file descriptor is left. In both cases the file is either the old or
    the new one.
    """
    told: dict[str, Any]
    if static_voters:
        told = {
            "clusterId": "",
            "leaderId": voted.leader_id,
            "leaderEpoch": voted.epoch,
            "votedId": voted.voted_id,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": voter} for voter in static_voters],
            "data_version": 0,
        }
    else:
        told = {
            "leaderId": voted.leader_id,
            "leaderEpoch": voted.epoch,
            "votedId": voted.voted_id,
            "votedDirectoryId": encode_id(voted.voted_directory or NO_DIRECTORY),
            "data_version": 1,
        }
    try:
        write_whole(world, f"{directory}/{QUORUM_STATE}", json.dumps(told, separators=(",", ":")).encode())
        world.disk.sync_directory_blocking(directory)
    except OSError as error:
        if not is_short(error):
            raise
        why = f"no file descriptor is left to write the vote: {error}"
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, why) from error
