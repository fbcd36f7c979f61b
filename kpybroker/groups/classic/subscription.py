"""Reads the subscriptions and assignments that members of the classic protocol exchange with their leader.

Source: the schemas ConsumerProtocolSubscription and ConsumerProtocolAssignment. They have an int16 version and the
fields of that version; later versions begin with the fields of the last known version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from kpybroker.errors import MalformedFrame
from kpybroker.wire.codec.codec import build, parse_prefix
from kpybroker.wire.stored.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)

_HEAD = Struct(">hi")
_LENGTH = Struct(">h")
LAST_VERSION = 3


class Subscription(NamedTuple):
    """The topics that a member subscribes to, and the partitions that it owns."""

    topics: tuple[str, ...]
    owned: Mapping[str, Sequence[int]]
    generation: int
    """The generation in which the member received its partitions; -1 if unknown."""
    rack_id: str | None


class Assignment(NamedTuple):
    """The partitions that a leader assigned to a member."""

    partitions: Mapping[str, Sequence[int]]
    """By topic."""
    user_data: bytes
    """Data from a custom assignor for the member; empty for Kafka's own assignors."""


def read_subscription(data: bytes) -> Subscription:
    """Parse the subscription of a member. Raises MalformedFrame."""
    version = _version(data)
    said, _ = parse_prefix(ConsumerProtocolSubscription, min(version, LAST_VERSION), data, _LENGTH.size)
    owned = _by_topic(said.owned_partitions)
    return Subscription(tuple(said.topics), owned, said.generation_id, said.rack_id)


def read_assignment(data: bytes) -> Assignment:
    """Parse the assignment of a member; no bytes are an empty assignment. Raises MalformedFrame."""
    if not data:
        return Assignment({}, b"")
    said, _ = parse_prefix(ConsumerProtocolAssignment, min(_version(data), LAST_VERSION), data, _LENGTH.size)
    return Assignment(_by_topic(said.assigned_partitions), bytes(said.user_data or b""))


def _by_topic(rows: Iterable[TopicPartition]) -> dict[str, Sequence[int]]:
    """Partitions by topic. A topic may occur more than once, because assignors list partitions in any order."""
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row.topic, []).extend(row.partitions)
    return dict(found)


def build_assignment(version: int, topics: Mapping[str, Sequence[int]]) -> bytes:
    """Encode an assignment, in a version that the member supports."""
    version = min(version, LAST_VERSION)
    assigned = [TopicPartition(topic=topic, partitions=list(partitions)) for topic, partitions in topics.items()]
    return _LENGTH.pack(version) + build(ConsumerProtocolAssignment(assigned_partitions=assigned), version)


def version_of(data: bytes) -> int:
    """The version of a subscription, which its member supports; 0 if it has none."""
    return max(_LENGTH.unpack_from(data)[0], 0) if len(data) >= _LENGTH.size else 0


def _version(data: bytes) -> int:
    version = _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else -1
    if version < 0:
        raise MalformedFrame("not a consumer's subscription")
    return int(version)


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """All topics in `subscriptions`; None if one of them is not a consumer's subscription."""
    topics: set[str] = set()
    for subscription in subscriptions:
        named = _topics(subscription)
        if named is None:
            return None
        topics.update(named)
    return frozenset(topics)


def _topics(subscription: bytes) -> list[str] | None:
    """Parse only the topics, which have the same position in every version."""
    size = len(subscription)
    if size < _HEAD.size:
        return None
    version, count = _HEAD.unpack_from(subscription)
    if version < 0 or not 0 <= count <= (size - _HEAD.size) // _LENGTH.size:
        return None
    topics = []
    position = _HEAD.size
    for _ in range(count):
        if position + _LENGTH.size > size:
            return None
        (length,) = _LENGTH.unpack_from(subscription, position)
        position += _LENGTH.size
        if length < 0 or position + length > size:
            return None
        try:
            topics.append(subscription[position : position + length].decode())
        except UnicodeDecodeError:
            return None
        position += length
    return topics
