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

TopicPartition = tuple[str, int]
"""The name of a topic and a partition index."""
TopicIdPartition = tuple[bytes, int]
"""A topic id and a partition index."""
