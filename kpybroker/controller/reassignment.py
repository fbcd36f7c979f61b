"""Decides AlterPartitionReassignments, which changes the replicas of partitions (KIP-455).

While a reassignment is in progress, the partition's replicas are the target replicas, followed by the replicas that
will be removed. `leadership` completes the reassignment when all added replicas are in sync.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kpybroker.controller.commands import (
    AlterReassignments,
    ListReassignments,
    OngoingReassignment,
    PartitionResult,
    Reassignment,
)
from kpybroker.controller.election_rules import Rules
from kpybroker.controller.elections import asked_partitions
from kpybroker.controller.leadership import Election, PartitionChange, Wanted
from kpybroker.controller.state import ControllerState
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.topics import PartitionImage


def alter_reassignments(
    state: ControllerState, rules: Rules, command: AlterReassignments
) -> tuple[list[Any], list[PartitionResult]]:
    """Decide on each partition separately."""
    named = Counter(state.stored_as(asked.topic, asked.partition) for asked in command.reassignments)
    records: list[Any] = []
    results = []
    for asked in command.reassignments:
        try:
            if named[state.stored_as(asked.topic, asked.partition)] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The partition is named twice.")
            record = _move(state, rules, asked, command.allow_replication_factor_change)
        except KafkaError as refusal:
            results.append(PartitionResult(asked.topic, asked.partition, refusal.code, refusal.message))
            continue
        if record is not None:
            records.append(record)
        results.append(PartitionResult(asked.topic, asked.partition))
    return records, results


def _move(state: ControllerState, rules: Rules, asked: Reassignment, may_change_factor: bool) -> Any | None:
    name, index = state.stored_as(asked.topic, asked.partition)
    topic = state.topic(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {asked.topic}.")
    partition = topic.partitions.get(index)
    if partition is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {asked.topic}:{asked.partition}."
        )
    if asked.replicas is None:
        wanted = _call_off(rules, topic.name, partition)
    else:
        _check_target(state, partition, asked.replicas, may_change_factor)
        wanted = _towards(partition, asked.replicas)
    return PartitionChange(state, rules, topic, state.active).record(index, wanted)


def _check_target(
    state: ControllerState, partition: PartitionImage, replicas: tuple[int, ...], may_change_factor: bool
) -> None:
    if not replicas:
        raise _wrong("The manual partition assignment includes an empty replica list.")
    for node_id in sorted(replicas):
        if node_id not in state.brokers:
            raise _wrong(
                f"The manual partition assignment includes broker {node_id}, but no such broker is registered."
            )
    twice = [node_id for node_id, times in sorted(Counter(replicas).items()) if times > 1]
    if twice:
        raise _wrong(f"The manual partition assignment includes the broker {twice[0]} more than once.")
    factor = len(partition.replicas) - len(partition.removing_replicas)
    if not may_change_factor and len(replicas) != factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor must not change, but the request changes it from {factor} to {len(replicas)}.",
        )


def _towards(partition: PartitionImage, target: tuple[int, ...]) -> Wanted:
    """The change that begins a reassignment. If another reassignment is in progress, the replicas that it was adding
    and that are not in the new target are removed at once."""
    before = tuple(node_id for node_id in partition.replicas if node_id not in partition.adding_replicas)
    removing = tuple(node_id for node_id in before if node_id not in target)
    replicas = target + removing
    return Wanted(
        isr=_staying(partition, replicas),
        replicas=replicas,
        removing=removing,
        adding=tuple(node_id for node_id in target if node_id not in before),
    )


def _call_off(rules: Rules, topic: str, partition: PartitionImage) -> Wanted:
    """Cancel a reassignment: restore the replicas that the partition had before it."""
    if not (partition.adding_replicas or partition.removing_replicas):
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    replicas = tuple(node_id for node_id in partition.replicas if node_id not in partition.adding_replicas)
    if not replicas:
        raise _wrong("The partition would have no replicas left.")
    unclean = rules.unclean(topic)
    return Wanted(
        isr=_staying(partition, replicas, may_lose=unclean),
        replicas=replicas,
        removing=(),
        adding=(),
        election=Election.UNCLEAN if unclean else Election.ONLINE,
    )


def _staying(partition: PartitionImage, replicas: tuple[int, ...], *, may_lose: bool = False) -> tuple[int, ...]:
    """The ISR without the removed replicas. At least one replica that has all records must stay."""
    complete = partition.isr or partition.eligible_leader_replicas
    if complete and not may_lose and not any(node_id in replicas for node_id in complete):
        raise _wrong("The change would remove all in-sync replicas, and records could be lost.")
    return tuple(node_id for node_id in partition.isr if node_id in replicas)


def list_reassignments(
    state: ControllerState, command: ListReassignments
) -> tuple[list[Any], list[OngoingReassignment]]:
    """The reassignments in progress; unknown partitions are skipped."""
    found = []
    for asked in asked_partitions(state, command.partitions):
        name, index = state.stored_as(*asked)
        topic = state.topics.get(name)
        partition = None if topic is None else topic.partitions.get(index)
        if partition is not None and (partition.adding_replicas or partition.removing_replicas):
            found.append(
                OngoingReassignment(
                    *asked,
                    partition.replicas,
                    partition.adding_replicas,
                    partition.removing_replicas,
                )
            )
    return [], found


def _wrong(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
