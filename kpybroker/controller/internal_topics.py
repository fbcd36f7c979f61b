"""Defines the internal topics that the broker creates, with Kafka's settings for them.

`most_replicas` is the number of registered brokers if the topics may have fewer replicas than the settings demand;
otherwise it is None (docs/decisions/0020).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kpybroker.config import BrokerConfig
from kpybroker.controller.commands import NewTopic
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.topics import INTERNAL_TOPICS, OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_TOPIC

POLICY = "cleanup.policy"


def check_growth(topic: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION for the topic of a coordinator, which must keep its number of partitions."""
    if topic in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"The number of partitions of internal topic {topic} cannot be changed, since the partition of each "
            "group, transactional id or share partition depends on it. Set it before the topic is first used "
            "(offsets.topic.num.partitions, transaction.state.log.num.partitions, "
            "share.coordinator.state.topic.num.partitions).",
        )


KEPT_BY: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        OFFSETS_TOPIC: {POLICY: "compact"},
        SHARE_STATE_TOPIC: {POLICY: "delete", "retention.ms": "-1"},
        TRANSACTION_TOPIC: {POLICY: "compact"},
    }
)
"""The settings with which the topic of a coordinator keeps every record that is needed, regardless of its age."""
WHY = {
    "compact": "have only the policy compact, because even old records may be needed",
    "delete": "not be compacted, because all updates of a share partition have the same key",
}


def check_policy(topic: str, policy: str) -> None:
    """Raises INVALID_CONFIG if the topic of a coordinator would lose records that are still needed: because of their
    age or, if more than one record of a key is needed, by compaction."""
    if topic not in INTERNAL_TOPICS:
        return
    only = KEPT_BY[topic][POLICY]
    if {part.strip() for part in policy.split(",")} != {only}:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {policy} for configuration {POLICY}: internal topic {topic} must {WHY[only]}.",
        )


REPLICATION_FACTORS = {
    OFFSETS_TOPIC: "offsets.topic.replication.factor",
    SHARE_STATE_TOPIC: "share.coordinator.state.topic.replication.factor",
    TRANSACTION_TOPIC: "transaction.state.log.replication.factor",
}


def offsets_topic(config: BrokerConfig, most_replicas: int | None) -> NewTopic:
    """The topic `__consumer_offsets`, which is compacted."""
    return NewTopic(
        name=OFFSETS_TOPIC,
        num_partitions=config.offsets_topic_num_partitions,
        replication_factor=_at_most(config.offsets_topic_replication_factor, most_replicas),
        configs=(
            ("cleanup.policy", "compact"),
            ("compression.type", "producer"),
            ("segment.bytes", str(config.offsets_topic_segment_bytes)),
        ),
    )


def transaction_topic(config: BrokerConfig, most_replicas: int | None) -> NewTopic:
    """The topic `__transaction_state`, which is compacted and has no unclean elections."""
    replicas = _at_most(config.transaction_state_log_replication_factor, most_replicas)
    return NewTopic(
        name=TRANSACTION_TOPIC,
        num_partitions=config.transaction_state_log_num_partitions,
        replication_factor=replicas,
        configs=(
            ("cleanup.policy", "compact"),
            ("compression.type", "uncompressed"),
            ("min.insync.replicas", str(min(config.transaction_state_log_min_isr, replicas))),
            ("segment.bytes", str(config.transaction_state_log_segment_bytes)),
            ("unclean.leader.election.enable", "false"),
        ),
    )


def share_state_topic(config: BrokerConfig, most_replicas: int | None) -> NewTopic:
    """The topic `__share_group_state`. Its records are kept until the coordinator deletes them
    (`shares/coordinator.py`)."""
    replicas = _at_most(config.share_coordinator_state_topic_replication_factor, most_replicas)
    return NewTopic(
        name=SHARE_STATE_TOPIC,
        num_partitions=config.share_coordinator_state_topic_num_partitions,
        replication_factor=replicas,
        configs=(
            ("cleanup.policy", KEPT_BY[SHARE_STATE_TOPIC][POLICY]),
            ("compression.type", "producer"),
            ("min.insync.replicas", str(min(config.share_coordinator_state_topic_min_isr, replicas))),
            ("retention.ms", KEPT_BY[SHARE_STATE_TOPIC]["retention.ms"]),
            ("segment.bytes", str(config.share_coordinator_state_topic_segment_bytes)),
        ),
    )


def _at_most(wanted: int, most: int | None) -> int:
    return wanted if most is None else max(1, min(wanted, most))
