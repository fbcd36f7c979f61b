"""Assigns replicas to brokers, creates the records of new partitions, and decides CreatePartitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

from kpybroker.config import BrokerConfig
from kpybroker.controller.commands import CreatePartitions, NewPartitions, TopicResult
from kpybroker.controller.directories import first_directory
from kpybroker.controller.internal_topics import check_growth
from kpybroker.controller.placement import Candidate, place_replicas
from kpybroker.controller.state import ControllerState
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.stored import metadata as stored

NEW_PARTITIONS_PER_REQUEST_MAX = 10_000


def place(state: ControllerState, random: Random, *, count: int, replication_factor: int) -> list[tuple[int, ...]]:
    """Choose brokers for `count` partitions. Raises INVALID_REPLICATION_FACTOR if there are too few."""
    candidates = [
        Candidate(node_id, broker.rack, not state.active(node_id)) for node_id, broker in sorted(state.brokers.items())
    ]
    if len(candidates) < replication_factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): The target replication factor of "
            f"{replication_factor} cannot be reached because only {len(candidates)} broker(s) are registered.",
        )
    if all(candidate.fenced for candidate in candidates):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replication_factor} time(s): All brokers are currently fenced.",
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
            raise _wrong("The manual partition assignment includes an empty replica list.")
        for node_id in sorted(replicas):
            if node_id not in state.brokers:
                raise _wrong(
                    f"The manual partition assignment includes broker {node_id}, but no such broker is registered."
                )
        twice = [node_id for node_id, times in sorted(Counter(replicas).items()) if times > 1]
        if twice:
            raise _wrong(f"The manual partition assignment includes the broker {twice[0]} more than once.")
        if replication_factor is None:
            replication_factor = len(replicas)
        if len(replicas) != replication_factor:
            raise _wrong(
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is "
                f"not consistent with previous partitions, which have {replication_factor} replica(s)."
            )
        if not any(state.active(node_id) for node_id in replicas):
            raise _wrong(
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


def too_many_partitions() -> KafkaError:
    """The error for a request with more than NEW_PARTITIONS_PER_REQUEST_MAX new partitions."""
    return KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def create_partitions(
    state: ControllerState, config: BrokerConfig, random: Random, command: CreatePartitions
) -> tuple[list[Any], list[TopicResult]]:
    """Decide on a CreatePartitions. Raises POLICY_VIOLATION if the request as a whole needs too many new partitions."""
    asked = sum(_added(state, topic) for topic in command.topics)
    if asked > NEW_PARTITIONS_PER_REQUEST_MAX:
        raise too_many_partitions()
    names = Counter(topic.name for topic in command.topics)
    records: list[Any] = []
    results = []
    for topic in {topic.name: topic for topic in command.topics}.values():
        try:
            if names[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            if state.partition_count + len(records) + _added(state, topic) > config.max_partitions:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION,
                    f"The cluster may have at most {config.max_partitions} partitions (kpybroker.max.partitions).",
                )
            grown = _grow(state, random, topic)
            command.charge(len(grown))
            records.extend(grown)
            results.append(TopicResult(topic.name, num_partitions=topic.total))
        except KafkaError as refusal:
            results.append(TopicResult(topic.name, error_code=refusal.code, error_message=refusal.message))
    return [] if command.validate_only else records, results


def _added(state: ControllerState, topic: NewPartitions) -> int:
    known = state.topics.get(topic.name)
    return 0 if known is None else max(0, topic.total - len(known.partitions))


def _grow(state: ControllerState, random: Random, topic: NewPartitions) -> list[Any]:
    known = state.topics.get(topic.name)
    if known is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    check_growth(topic.name)
    now = len(known.partitions)
    if topic.total == now:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {now} partition(s).")
    if topic.total < now:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {now} partition(s); {topic.total} would not be an increase.",
        )
    added = topic.total - now
    first = known.partitions[0]
    replication_factor = len(first.replicas) - len(first.removing_replicas)
    if topic.assignments is None:
        placed = place(state, random, count=added, replication_factor=replication_factor)
    else:
        if len(topic.assignments) != added:
            raise _wrong(
                f"Attempted to add {added} additional partition(s), but only {len(topic.assignments)} "
                "assignment(s) were specified."
            )
        placed = list(topic.assignments)
        check_assignments(state, placed, replication_factor=replication_factor, first_partition=now)
    return [new_partition(state, known.topic_id, index, replicas) for index, replicas in enumerate(placed, now)]


def _wrong(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
