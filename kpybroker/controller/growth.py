"""Decides CreatePartitions: the partitions that are added to topics."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from kpybroker.config import BrokerConfig
from kpybroker.controller import delivery_logs, retirements
from kpybroker.controller.assignments import check_assignments, new_partition, place, wrong_assignment
from kpybroker.controller.commands import CreatePartitions, NewPartitions, TopicResult
from kpybroker.controller.internal_topics import check_growth
from kpybroker.controller.state import ControllerState
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.topics import delivery_log_of

NEW_PARTITIONS_PER_REQUEST_MAX = 10_000


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
            if state.partition_count + len(records) + _hosted(state, topic) > config.max_partitions:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION,
                    f"The cluster may have at most {config.max_partitions} partitions (kpybroker.max.partitions).",
                )
            grown = _grow(state, random, topic)
            command.charge(_added(state, topic))
            records.extend(grown)
            results.append(TopicResult(topic.name, num_partitions=topic.total))
        except KafkaError as refusal:
            results.append(TopicResult(topic.name, error_code=refusal.code, error_message=refusal.message))
    return [] if command.validate_only else records, results


def _added(state: ControllerState, topic: NewPartitions) -> int:
    known = state.topics.get(topic.name)
    return 0 if known is None else max(0, topic.total - len(known.partitions))


def _hosted(state: ControllerState, topic: NewPartitions) -> int:
    """The number of new partitions, with those of the delivery log."""
    added = _added(state, topic)
    return 2 * added if delivery_log_of(topic.name) in state.topics else added


def _grow(state: ControllerState, random: Random, topic: NewPartitions) -> list[Any]:
    known = state.topic(topic.name)
    if known is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    check_growth(topic.name)
    delivery_logs.check_growth(topic.name)
    now, retirement = len(known.partitions), state.retirement(topic.name)
    in_use = now if retirement is None else retirement.in_use
    if topic.total == in_use:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {in_use} partition(s).")
    if topic.total < in_use:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {in_use} partition(s); {topic.total} would not be an increase.",
        )
    if retirement is not None and topic.assignments is not None:
        raise wrong_assignment(
            f"{now - in_use} retired partition(s) of {topic.name} come back first, and keep their replicas; leave the "
            "assignments out."
        )
    returned = retirements.grown(state, known, topic.total)
    added = topic.total - now
    if added <= 0:
        return returned
    first = known.partitions[0]
    replication_factor = len(first.replicas) - len(first.removing_replicas)
    if topic.assignments is None:
        placed = place(state, random, count=added, replication_factor=replication_factor)
    else:
        if len(topic.assignments) != added:
            raise wrong_assignment(
                f"Attempted to add {added} additional partition(s), but only {len(topic.assignments)} "
                "assignment(s) were specified."
            )
        placed = list(topic.assignments)
        check_assignments(state, placed, replication_factor=replication_factor, first_partition=now)
    records = [new_partition(state, known.topic_id, index, replicas) for index, replicas in enumerate(placed, now)]
    return returned + records + delivery_logs.grown(state, topic.name, placed)
