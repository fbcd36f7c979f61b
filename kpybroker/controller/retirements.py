"""Decides how many partitions of a topic are in use; the others are retired (`metadata/retirements.py`).

A topic gets fewer partitions by the setting `kpybroker.partitions`, and gets them back by the same setting or by
CreatePartitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kpybroker.config import BrokerConfig
from kpybroker.config.partition_keys import EMPTY, GRACE, IN_USE, PARTITION_KEYS
from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.commands import NewTopic
from kpybroker.controller.internal_topics import POLICY
from kpybroker.controller.names import invalid_topic_name
from kpybroker.controller.state import ControllerState, TopicState
from kpybroker.errors import ConfigError, ErrorCode, KafkaError
from kpybroker.metadata.retirements import Retirement, retired_name
from kpybroker.topics import is_internal


def settings_of(state: ControllerState, topic: str) -> Mapping[str, str]:
    """The settings that a topic has because some of its partitions are retired."""
    retirement = state.retirement(topic)
    return {} if retirement is None else retirement.settings


def other_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that have nothing to do with retired partitions."""
    return {name: value for name, value in settings.items() if name not in PARTITION_KEYS}


def check_new(topic: NewTopic) -> None:
    """Raise INVALID_CONFIG if a new topic is to have retired partitions."""
    for name, _ in topic.configs:
        if name in PARTITION_KEYS:
            raise _wrong(f"{name} cannot be set for a new topic; create it with the partitions that it needs")


def changed(state: ControllerState, config: BrokerConfig, topic: str, wanted: Mapping[str, str]) -> list[Any]:
    """The record with which a topic has the number of partitions in use that its settings ask for. Raises KafkaError if
    it cannot have it."""
    before = state.retirement(topic)
    after = _wanted(state, topic, before, wanted)
    if after is not None and is_internal(topic):
        raise _wrong(f"{topic} is an internal topic, whose partitions cannot be retired")
    policy = wanted.get(POLICY)
    if after is not None and (after != before or policy != state.config(ResourceType.TOPIC, topic).get(POLICY)):
        _check_policy(topic, policy or config.topic_default(POLICY) or "")
    if after == before:
        return []
    if after is None:
        return [] if before is None else [before.removal()]
    if before is None or after.in_use < before.in_use:
        _check_topic(state, state.topics[topic])
    return [after.record()]


def grown(state: ControllerState, topic: TopicState, total: int) -> list[Any]:
    """The record with which a topic gets retired partitions back, until it has `total` partitions."""
    before = state.retirement(topic.name)
    if before is None:
        return []
    after = before.with_in_use(total)
    return [before.removal() if after is None else after.record()]


def removed(state: ControllerState, topic: str) -> list[Any]:
    """The record that removes the retirement of a deleted topic."""
    return [state.retirements[topic].removal()] if topic in state.retirements else []


def _wanted(
    state: ControllerState, topic: str, before: Retirement | None, settings: Mapping[str, str]
) -> Retirement | None:
    known = state.topics[topic]
    asked = {name: _parsed(name, settings[name]) for name in PARTITION_KEYS if name in settings}
    in_use = asked.get(IN_USE)
    if in_use is None:
        if asked and before is None:
            raise _wrong(f"{min(asked)} needs {IN_USE}, the number of partitions in use")
        return None
    count = len(known.partitions)
    if in_use > count:
        raise _wrong(
            f"{topic} has {count} partitions, so {in_use} cannot be in use; add partitions with CreatePartitions"
        )
    if in_use == count:
        return None
    empty = frozenset(map(int, asked.get(EMPTY, ())))
    if not all(index < count for index in empty):
        raise _wrong(f"{EMPTY} lists retired partitions, which are {in_use} to {count - 1}")
    grace_ms = asked.get(GRACE, int(PARTITION_KEYS[GRACE].default or 0))
    whole = Retirement(topic, known.topic_id, count, in_use, grace_ms, empty)
    return whole.with_in_use(in_use)


def _parsed(name: str, text: str) -> Any:
    try:
        value: Any = PARTITION_KEYS[name].parse(text)
    except ConfigError as error:
        raise _wrong(str(error)) from None
    if name == EMPTY and not all(item.isascii() and item.isdecimal() and len(item) < 10 for item in value):
        raise _wrong(f"{name} is a list of partition numbers, and not {text}")
    return value


def _check_policy(topic: str, policy: str) -> None:
    """Raise INVALID_CONFIG if a topic with retired partitions is compacted: the latest records of its keys would be in
    two partitions, and the retired ones would never be empty."""
    if "compact" in policy:
        raise _wrong(
            f"{topic} cannot be compacted and have retired partitions, because records of the same key would stay in "
            "both; copy it to a new topic with fewer partitions instead"
        )


def _check_topic(state: ControllerState, topic: TopicState) -> None:
    name = retired_name(topic.name)
    if name in state.topics or name in state.views:
        raise _wrong(
            f"the retired partitions would be shown as {name}, but there is a topic of this name; delete it first"
        )
    reason = invalid_topic_name(name)
    if reason is not None:
        raise _wrong(f"the retired partitions would be shown as {name}, which is not possible: {reason}")
    for index, partition in topic.partitions.items():
        if partition.adding_replicas or partition.removing_replicas:
            raise _wrong(f"{topic.name}-{index} is being reassigned; retire partitions when that has ended")


def _wrong(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, reason)
