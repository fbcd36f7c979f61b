"""Names of Kafka's internal topics, and of partitions."""

from __future__ import annotations

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
METADATA_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTION_TOPIC, SHARE_STATE_TOPIC})
"""The topics with the state of coordinators. The partition of a group or transactional id is its hash modulo the number
of partitions.
"""
DELIVERY_PREFIX = "__scheduled."
"""The names of delivery logs begin with this, and end with the topic to which their records are delivered."""


def delivery_log_of(topic: str) -> str:
    """The topic with the scheduled records of a topic."""
    return DELIVERY_PREFIX + topic


def scheduled_topic_of(delivery_log: str) -> str | None:
    """The topic to which the records of a delivery log are delivered; None for a topic that is no delivery log."""
    return delivery_log[len(DELIVERY_PREFIX) :] if delivery_log.startswith(DELIVERY_PREFIX) else None


def is_internal(topic: str) -> bool:
    """Whether the topic belongs to the brokers: it has the state of a coordinator, or is a delivery log."""
    return topic in INTERNAL_TOPICS or topic.startswith(DELIVERY_PREFIX)


TopicPartition = tuple[str, int]
"""The name of a topic and a partition index."""
TopicIdPartition = tuple[bytes, int]
"""A topic id and a partition index."""
