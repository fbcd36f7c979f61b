"""Assigns replicas to brokers, and creates the records of new partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

from kpybroker.controller.directories import first_directory
from kpybroker.controller.placement import Candidate, place_replicas
from kpybroker.controller.state import ControllerState
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.stored import metadata as stored


def place(state: ControllerState, random: Random, *, count: int, replication_factor: int) -> list[tuple[int, ...]]:
    """Choose brokers for `count` partitions. Raises INVALID_REPLICATION_FACTOR if there are too few."""
    candidates = [
        Candidate(node_id, broker.rack, not state.active(node_id))
        for node_id, broker in sorted(state.brokers.items())
        if not broker.is_cordoned
    ]
    if len(candidates) < replication_factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(candidates)} broker(s) are registered or "
            "some brokers have all their log directories cordoned.",
        )
    if all(candidate.fenced for candidate in candidates):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): All brokers are currently fenced, or "
            "have all their log directories cordoned.",
        )
    return place_replicas(candidates, count, replication_factor, random)


def check_assignments(
    state: ControllerState,
    assigned: Sequence[Sequence[int]],
    *,
    replication_factor: int | None,
    first_partition: int,
) -> None:
    """Check a manual assignment: all lists have `replication_factor` entries, or as many as the first."""
    for index, replicas in enumerate(assigned, first_partition):
        if not replicas:
            raise wrong_assignment("The manual partition assignment includes an empty replica list.")
        for node_id in sorted(replicas):
            if node_id not in state.brokers:
                raise wrong_assignment(
                    f"The manual partition assignment includes broker {node_id}, but no such broker is registered."
                )
        twice = [node_id for node_id, times in sorted(Counter(replicas).items()) if times > 1]
        if twice:
            raise wrong_assignment(f"The manual partition assignment includes the broker {twice[0]} more than once.")
        if replication_factor is None:
            replication_factor = len(replicas)
        if len(replicas) != replication_factor:
            raise wrong_assignment(
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is "
                f"not consistent with previous partitions, which have {replication_factor} replica(s)."
            )
        if not any(state.active(node_id) for node_id in replicas):
            raise wrong_assignment(
                f"All brokers specified in the manual partition assignment for partition {index} are fenced or in "
                "controlled shutdown."
            )


def new_partition(state: ControllerState, topic_id: bytes, index: int, replicas: tuple[int, ...]) -> Any:
    """The record of a new partition: the first live replica leads, and all live replicas are in sync."""
    isr = [node_id for node_id in replicas if state.active(node_id)]
    return stored.PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=list(replicas),
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=[first_directory(state, node_id) for node_id in replicas],
    )


def wrong_assignment(text: str) -> KafkaError:
    """The error for replicas that cannot be assigned."""
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
