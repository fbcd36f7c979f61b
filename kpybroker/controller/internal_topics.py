"""Internal topics that the broker creates, with Kafka's settings for them.

`most_replicas` is the number of registered brokers if the topics may have fewer replicas than the settings demand, else
None (docs/decisions/0020).
"""

from __future__ import annotations

from kpybroker.config import BrokerConfig
from kpybroker.controller.commands import NewTopic
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.topics import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTION_TOPIC

POLICY = "cleanup.policy"


def check_growth(topic: str) -> None:
    """Raises INVALID_TOPIC_EXCEPTION for the log of a coordinator, which must keep its number of partitions."""
    if topic in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"The number of partitions of internal topic {topic} cannot be changed, since the partition of each "
            "group or transactional id depends on it. Set it before the topic is first used "
            "(offsets.topic.num.partitions, transaction.state.log.num.partitions).",
        )


def check_policy(topic: str, policy: str) -> None:
    """Raises INVALID_CONFIG if the log of a coordinator would lose records because of their age."""
    if topic in INTERNAL_TOPICS and {part.strip() for part in policy.split(",")} != {"compact"}:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {policy} for configuration {POLICY}: internal topic {topic} must be compacted, and "
            "must not be deleted by retention, as old records may still be in use.",
        )


REPLICATION_FACTORS = {
    OFFSETS_TOPIC: "offsets.topic.replication.factor",
    TRANSACTION_TOPIC: "transaction.state.log.replication.factor",
}


def offsets_topic(config: BrokerConfig, most_replicas: int | None) -> NewTopic:
    """`__consumer_offsets`: compacted."""
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
    """`__transaction_state`: compacted, and never led by a replica that was not in sync."""
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


def _at_most(wanted: int, most: int | None) -> int:
    return wanted if most is None else max(1, min(wanted, most))
