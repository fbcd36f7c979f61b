"""Looks up the log directories of replicas, as reported by brokers (KIP-858)."""

from __future__ import annotations

from collections.abc import Sequence

from kpybroker.controller.state import ControllerState
from kpybroker.metadata.brokers import BrokerImage
from kpybroker.metadata.topics import PartitionImage
from kpybroker.wire.directory_ids import LOST, MIGRATING, UNASSIGNED


def is_online(broker: BrokerImage, directory: bytes) -> bool:
    """Whether a replica in this directory can be served, as far as the controller knows."""
    if directory in (MIGRATING, UNASSIGNED):
        return True
    return directory != LOST and (not broker.log_dirs or directory in broker.log_dirs)


def directory_in(partition: PartitionImage, node_id: int) -> bytes:
    """The directory of a replica; UNASSIGNED if the partition does not have one."""
    known = dict(zip(partition.replicas, partition.directories, strict=False))
    return known.get(node_id, UNASSIGNED)


def first_directory(state: ControllerState, node_id: int) -> bytes:
    """The directory of a new replica; UNASSIGNED if the broker has several directories, so that it must report which
    one it chose."""
    broker = state.brokers.get(node_id)
    return broker.log_dirs[0] if broker is not None and len(broker.log_dirs) == 1 else UNASSIGNED


def directories_for(state: ControllerState, now: PartitionImage, replicas: Sequence[int]) -> list[bytes]:
    """The directories of these replicas; directories that are already known do not change."""
    known = dict(zip(now.replicas, now.directories, strict=False))
    return [known.get(node_id) or first_directory(state, node_id) for node_id in replicas]
