"""Delivery logs: the controller creates one with each topic whose records may be scheduled, and deletes it with it.

The log has as many partitions as the topic, each with the replicas that the partition of the topic has at that time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from kpybroker.config.delivery_keys import SCHEDULED
from kpybroker.config.log_settings import LONG_MAX
from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.assignments import new_partition
from kpybroker.controller.ids import random_uuid
from kpybroker.controller.names import NAME_LENGTH_MAX
from kpybroker.controller.state import ControllerState
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.image import ELR_FEATURE
from kpybroker.topics import DELIVERY_PREFIX, delivery_log_of, is_internal, scheduled_topic_of
from kpybroker.wire.stored import metadata as stored

MIN_ISR = "min.insync.replicas"
CHANGEABLE = frozenset(
    {
        "delete.retention.ms",
        "follower.replication.throttled.replicas",
        "internal.segment.bytes",
        "leader.replication.throttled.replicas",
        "max.compaction.lag.ms",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "segment.ms",
    }
)
"""The settings of a delivery log that may be changed."""
SETTINGS = {
    "cleanup.policy": "compact",
    "compression.type": "producer",
    "max.message.bytes": str(100 << 20),
    "message.timestamp.after.max.ms": str(LONG_MAX),
    "message.timestamp.type": "CreateTime",
    "segment.bytes": str(100 << 20),
    "unclean.leader.election.enable": "false",
}


def is_scheduled(settings: Mapping[str, str]) -> bool:
    """Whether a topic with these settings has a delivery log."""
    return settings.get(SCHEDULED, "").strip().lower() == "true"


def check_scheduled(topic: str, settings: Mapping[str, str]) -> None:
    """Raise INVALID_CONFIG if the topic has the setting, but cannot have a delivery log."""
    if not is_scheduled(settings):
        return
    if is_internal(topic):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"The records of internal topic {topic} cannot be scheduled.")
    most = NAME_LENGTH_MAX - len(DELIVERY_PREFIX)
    if len(topic) > most:
        text = f"The name of a topic with {SCHEDULED}=true has at most {most} characters, because its delivery log is "
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{text}{DELIVERY_PREFIX}<topic>.")


def check_not_reserved(topic: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION for the name of a delivery log, which clients cannot create."""
    source = scheduled_topic_of(topic)
    if source is not None:
        text = f"Topic '{topic}' is created with {SCHEDULED}=true on the topic '{source}', and not by itself."
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)


def check_not_of_a_topic(state: ControllerState, name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION if the topic is the delivery log of another topic, with which it is deleted."""
    source = scheduled_topic_of(name)
    if source is not None and source in state.topics:
        text = f"Topic '{name}' has the scheduled records of '{source}', and is deleted together with it."
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)


def check_growth(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION for a delivery log, which always has as many partitions as its topic."""
    source = scheduled_topic_of(name)
    if source is not None:
        text = f"Topic '{name}' always has as many partitions as '{source}': add partitions to that topic."
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)


def created(
    state: ControllerState,
    random: Random,
    topic: str,
    settings: Mapping[str, str],
    replicas: Sequence[tuple[int, ...]],
) -> list[Any]:
    """The records that create the delivery log of a topic; none if the topic has no need of one, or has one."""
    name = delivery_log_of(topic)
    if not is_scheduled(settings) or name in state.topics:
        return []
    topic_id = random_uuid(random)
    own = {**SETTINGS, **({MIN_ISR: settings[MIN_ISR]} if MIN_ISR in settings else {})}
    records: list[Any] = [stored.TopicRecord(name=name, topic_id=topic_id)]
    records += [
        stored.ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=name, name=key, value=value)
        for key, value in own.items()
    ]
    records += [new_partition(state, topic_id, index, placed) for index, placed in enumerate(replicas)]
    return records


def grown(state: ControllerState, topic: str, added: Sequence[tuple[int, ...]]) -> list[Any]:
    """The records that add partitions to the delivery log of a topic, if it has one, so that it has as many as the
    topic: `added` has the replicas of its new partitions, and Apache Kafka may have added others before."""
    known = state.topics.get(delivery_log_of(topic))
    if known is None:
        return []
    replicas = [*replicas_of(state, topic), *added]
    return [
        new_partition(state, known.topic_id, index, replicas[index])
        for index in range(len(known.partitions), len(replicas))
    ]


def replicas_of(state: ControllerState, topic: str) -> list[tuple[int, ...]]:
    """The replicas of each partition of a topic, without those that a reassignment removes."""
    partitions = state.topics[topic].partitions
    return [
        tuple(node_id for node_id in partitions[index].replicas if node_id not in partitions[index].removing_replicas)
        for index in sorted(partitions)
    ]


def followed(state: ControllerState, topic: str, settings: Mapping[str, str]) -> list[Any]:
    """The records with which the delivery log of a topic follows its min.insync.replicas, so that acks=all means
    the same for scheduled records."""
    name = delivery_log_of(topic)
    wanted = settings.get(MIN_ISR)
    if name not in state.topics or state.config(ResourceType.TOPIC, name).get(MIN_ISR) == wanted:
        return []
    changed = stored.ConfigRecord(resource_type=ResourceType.TOPIC, resource_name=name, name=MIN_ISR, value=wanted)
    has_elr = bool(state.features.get(ELR_FEATURE, 0))
    return [changed, stored.ClearElrRecord(topic_name=name)] if has_elr else [changed]


def check_change(name: str, current: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Raise INVALID_CONFIG for a change of a delivery log's settings with which it could lose or refuse records."""
    source = scheduled_topic_of(name)
    if source is None:
        return
    changed = sorted(key for key in current.keys() | wanted.keys() if current.get(key) != wanted.get(key))
    refused = [key for key in changed if key not in CHANGEABLE]
    if refused:
        text = f"{refused[0]} of '{name}', which has the scheduled records of '{source}', cannot be changed"
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{text}; only {', '.join(sorted(CHANGEABLE))}.")


def removed(state: ControllerState, topic: str) -> list[Any]:
    """The record that deletes the delivery log of a topic, if it has one."""
    known = state.topics.get(delivery_log_of(topic))
    return [] if known is None else [stored.RemoveTopicRecord(topic_id=known.topic_id)]
