"""Decides CreateTopics and DeleteTopics: checks each topic, and creates its records."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from kpybroker.config import BrokerConfig
from kpybroker.config.resource_type import ResourceType
from kpybroker.controller import delivery_logs, retirements
from kpybroker.controller.assignments import check_assignments, new_partition, place
from kpybroker.controller.commands import (
    ZERO_UUID,
    ChargePartitions,
    CreateTopics,
    DeleteTopics,
    NewTopic,
    TopicResult,
)
from kpybroker.controller.configs import check_topic_configs
from kpybroker.controller.ids import random_uuid
from kpybroker.controller.internal_topics import KEPT_BY, POLICY, check_policy
from kpybroker.controller.names import invalid_topic_name
from kpybroker.controller.state import ControllerState
from kpybroker.controller.views import create_view, is_view, shown_views, views_of
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.topics import INTERNAL_TOPICS, METADATA_TOPIC
from kpybroker.wire.stored import metadata as stored

PARTITIONS_PER_REQUEST_MAX = 10_000
INTERNAL_NAMES = frozenset({METADATA_TOPIC, *INTERNAL_TOPICS})
INTERNAL_NAMES_FOLDED = {name.lower(): name for name in INTERNAL_NAMES}
"""If the file system ignores case, these names are reserved even before the topics exist."""


@dataclass(slots=True)
class _Made:
    """The topics that this request has created so far; they are not in the state yet."""

    normal_names: dict[str, str] = field(default_factory=dict)
    partitions: int = 0
    views: int = 0
    settings: dict[tuple[tuple[str, str | None], ...], dict[str, str]] = field(default_factory=dict)
    """Overrides in the request -> checked overrides. Many topics of a request have the same overrides."""
    records: list[Any] = field(default_factory=list)


def create_topics(
    state: ControllerState, config: BrokerConfig, random: Random, command: CreateTopics
) -> tuple[list[Any], list[TopicResult]]:
    """Decide on a CreateTopics. Raises POLICY_VIOLATION if all topics together have too many partitions."""
    asked = sum(_count(topic, config) for topic in command.topics)
    if asked > PARTITIONS_PER_REQUEST_MAX:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    names = Counter(topic.name for topic in command.topics)
    made = _Made()
    results = []
    for topic in {topic.name: topic for topic in command.topics}.values():
        try:
            if names[topic.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            results.append(_create(state, config, random, topic, made, command.charge))
        except KafkaError as refusal:
            results.append(TopicResult(topic.name, error_code=refusal.code, error_message=refusal.message))
    return [] if command.validate_only else made.records, results


def _count(topic: NewTopic, config: BrokerConfig) -> int:
    if topic.assignments:
        return len(topic.assignments)
    return config.num_partitions if topic.num_partitions == -1 else max(0, topic.num_partitions)


def _create(
    state: ControllerState,
    config: BrokerConfig,
    random: Random,
    topic: NewTopic,
    made: _Made,
    charge: ChargePartitions,
) -> TopicResult:
    _check_name(state, topic.name, made)
    if is_view(topic):
        record, result = create_view(state, topic, made.views)
        made.views += 1
        made.records.append(record)
        return result
    retirements.check_new(topic)
    settings = made.settings.get(topic.configs)
    if settings is None:
        settings = made.settings[topic.configs] = _settings(config, topic)
    delivery_logs.check_scheduled(topic.name, settings)
    if topic.name in INTERNAL_TOPICS:
        settings = {**KEPT_BY[topic.name], **settings}
        check_policy(topic.name, settings[POLICY])
    placed = _assign(state, config, random, topic)
    count = len(placed)
    hosted = 2 * count if delivery_logs.is_scheduled(settings) else count
    if state.partition_count + made.partitions + hosted > config.max_partitions:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"The cluster may have at most {config.max_partitions} partitions "
            f"(kpybroker.max.partitions), and it has {state.partition_count + made.partitions}.",
        )
    charge(count)
    topic_id = random_uuid(random)
    made.partitions += hosted
    made.normal_names[state.normal_name(topic.name)] = topic.name
    made.records.append(stored.TopicRecord(name=topic.name, topic_id=topic_id))
    for name, value in settings.items():
        made.records.append(
            stored.ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=topic.name, name=name, value=value)
        )
    for index, replicas in enumerate(placed):
        made.records.append(new_partition(state, topic_id, index, replicas))
    made.records += delivery_logs.created(state, random, topic.name, settings, placed)
    return TopicResult(
        topic.name,
        topic_id,
        num_partitions=count,
        replication_factor=len(placed[0]),
        configs=settings,
    )


def _check_name(state: ControllerState, name: str, made: _Made) -> None:
    if name == METADATA_TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    reason = invalid_topic_name(name)
    if reason is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, reason)
    delivery_logs.check_not_reserved(name)
    if name in state.topics or name in state.views:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if (retirement := state.retired(name)) is not None:
        raise KafkaError(
            ErrorCode.TOPIC_ALREADY_EXISTS, f"'{name}' is the name of the retired partitions of '{retirement.topic}'."
        )
    normal = state.normal_name(name)
    other = state.normal_names.get(normal) or made.normal_names.get(normal)
    if state.folds_case and name not in INTERNAL_NAMES:
        other = other or INTERNAL_NAMES_FOLDED.get(name.lower())
    if other is not None:
        message = f"Topic '{name}' collides with existing topic: {other}"
        if other.lower() == name.lower():
            message += " (they differ only in case, and would share a directory in the file system of log.dirs)"
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


def _settings(config: BrokerConfig, topic: NewTopic) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, value in topic.configs:
        if value is None:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
        settings[name] = value
    check_topic_configs(config, settings)
    return settings


def _assign(state: ControllerState, config: BrokerConfig, random: Random, topic: NewTopic) -> list[tuple[int, ...]]:
    if topic.assignments:
        if topic.replication_factor != -1:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "A manual partition assignment was specified, but replication factor was not set to -1.",
            )
        if topic.num_partitions != -1:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "A manual partition assignment was specified, but numPartitions was not set to -1.",
            )
        return _manual(state, topic)
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    count = config.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    factor = config.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
    return place(state, random, count=count, replication_factor=factor)


def _manual(state: ControllerState, topic: NewTopic) -> list[tuple[int, ...]]:
    by_index: dict[int, tuple[int, ...]] = {}
    for index, replicas in topic.assignments:
        if index in by_index:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {index}",
            )
        by_index[index] = replicas
    if sorted(by_index) != list(range(len(by_index))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    assigned = [by_index[index] for index in range(len(by_index))]
    check_assignments(state, assigned, replication_factor=None, first_partition=0)
    return assigned


def delete_topics(
    state: ControllerState, config: BrokerConfig, command: DeleteTopics
) -> tuple[list[Any], list[TopicResult]]:
    """Decide on each topic of a DeleteTopics separately."""
    if not config.delete_topic_enable:
        raise KafkaError(ErrorCode.TOPIC_DELETION_DISABLED, "delete.topic.enable is false on this cluster.")
    asked = Counter(_identity(state, name, topic_id) for name, topic_id in command.topics)
    refused: set[str | bytes] = set()
    records: list[Any] = []
    results = []
    for name, topic_id in command.topics:
        try:
            identity = _identity(state, name, topic_id)
            if asked[identity] > 1:
                if identity in refused:
                    continue
                refused.add(identity)
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "Duplicate topic name." if name is not None else "Duplicate topic id."
                )
            topic_name, found_id = _find(state, name, topic_id)
            if topic_name in state.topics:
                delivery_logs.check_not_of_a_topic(state, topic_name)
                command.charge(len(state.topics[topic_name].partitions))
                records += [view.removal() for view in views_of(state, topic_name)]
                records.append(stored.RemoveTopicRecord(topic_id=found_id))
                records += delivery_logs.removed(state, topic_name)
                records += retirements.removed(state, topic_name)
            else:
                records.append(state.views[topic_name].removal())
            results.append(TopicResult(topic_name, found_id))
        except KafkaError as refusal:
            results.append(TopicResult(name, topic_id, refusal.code, refusal.message))
    return records, results


def _identity(state: ControllerState, name: str | None, topic_id: bytes) -> str | bytes:
    if name is None:
        return state.names.get(topic_id) or _view_of_id(state, topic_id) or topic_id
    return name if topic_id == ZERO_UUID else name.encode() + topic_id


def _find(state: ControllerState, name: str | None, topic_id: bytes) -> tuple[str, bytes]:
    if name is not None:
        if topic_id != ZERO_UUID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
        if name in state.topics:
            return name, state.topics[name].topic_id
        if name in state.views:  # its source may be missing
            return name, dict(shown_views(state)).get(name, ZERO_UUID)
        if (retirement := state.retired(name)) is not None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{name} has the retired partitions of {retirement.topic}: delete their records with DeleteRecords, or "
                f"delete {retirement.topic}.",
            )
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")
    if topic_id == ZERO_UUID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
    if (view := _view_of_id(state, topic_id)) is not None:
        return view, topic_id
    if topic_id not in state.names:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    return state.names[topic_id], topic_id


def _view_of_id(state: ControllerState, topic_id: bytes) -> str | None:
    if not state.views or topic_id == ZERO_UUID:
        return None
    return next((name for name, view in shown_views(state) if view == topic_id), None)
