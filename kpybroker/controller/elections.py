"""Elections that a client requests (ElectLeaders, KIP-460), and elections that a timer starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kpybroker.controller.commands import ElectionType, ElectLeaders, PartitionResult
from kpybroker.controller.election_rules import Rules
from kpybroker.controller.leadership import Election, PartitionChange, Wanted
from kpybroker.controller.state import ControllerState
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.topics import NO_LEADER, PartitionImage
from kpybroker.topics import TopicPartition

BALANCED_AT_ONCE_MAX = 1000
"""The most leaderships that one step returns to preferred leaders, as in Kafka."""


def elect_leaders(
    state: ControllerState, rules: Rules, command: ElectLeaders
) -> tuple[list[Any], list[PartitionResult]]:
    """Decide on each partition separately. Raises INVALID_REQUEST for an unknown type of election."""
    if command.election_type not in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {command.election_type}.")
    preferred = command.election_type == ElectionType.PREFERRED
    records: dict[TopicPartition, Any] = {}
    results = []
    for topic, index in asked_partitions(state, command.partitions):
        try:
            record = None if (topic, index) in records else _elect(state, rules, topic, index, preferred=preferred)
        except KafkaError as refusal:
            results.append(PartitionResult(topic, index, refusal.code, refusal.message))
            continue
        if record is not None:
            records[topic, index] = record
            results.append(PartitionResult(topic, index))
    return list(records.values()), results


def asked_partitions(
    state: ControllerState, asked: tuple[tuple[str, tuple[int, ...]], ...] | None
) -> Iterator[TopicPartition]:
    """(topic, index) of the requested partitions, or of all partitions."""
    if asked is None:
        for topic in state.topics.values():
            for index in topic.partitions:
                yield topic.name, index
        return
    for name, indexes in asked:
        for index in indexes:
            yield name, index


def _elect(state: ControllerState, rules: Rules, name: str, index: int, *, preferred: bool) -> Any:
    topic = state.topic(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    partition = topic.partitions.get(index)
    if partition is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    if partition.leader == partition.replicas[0] if preferred else _has_leader(state, partition):
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED)
    election = Election.PREFERRED if preferred else Election.UNCLEAN
    record = PartitionChange(state, rules, topic, state.active).record(index, Wanted(election=election))
    if record is None or (preferred and record.leader != partition.replicas[0]):
        missing = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE if preferred else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        raise KafkaError(missing)
    return record


def _has_leader(state: ControllerState, partition: PartitionImage) -> bool:
    return partition.leader != NO_LEADER and state.active(partition.leader)


def elect_uncleanly(state: ControllerState, rules: Rules) -> list[Any]:
    """Elect leaders for partitions that have none, in topics that allow unclean elections."""
    records: list[Any] = []
    for topic in state.topics.values():
        leaderless = [index for index, partition in topic.partitions.items() if partition.leader == NO_LEADER]
        if leaderless and rules.unclean(topic.name):
            change = PartitionChange(state, rules, topic, state.active)
            found = (change.record(index, Wanted(election=Election.UNCLEAN)) for index in leaderless)
            records += [record for record in found if record is not None]
    return records


def balance_leaders(state: ControllerState, rules: Rules) -> list[Any]:
    """Return leaderships to preferred leaders, at most BALANCED_AT_ONCE_MAX of them."""
    records: list[Any] = []
    for topic in state.topics.values():
        change = PartitionChange(state, rules, topic, state.active)
        for index, partition in topic.partitions.items():
            first = partition.replicas[0]
            if partition.leader in (first, NO_LEADER) or first not in partition.isr or not state.active(first):
                continue
            record = change.record(index, Wanted(election=Election.PREFERRED))
            if record is not None:
                records.append(record)
            if len(records) >= BALANCED_AT_ONCE_MAX:
                return records
    return records
