"""Topics the broker makes for itself, with the settings Kafka gives them."""

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
            f"The number of partitions of internal topic {topic} cannot be changed: what it keeps is found by that "
            "number. It is set before the topic is first used (offsets.topic.num.partitions, "
            "transaction.state.log.num.partitions).",
        )


def check_policy(topic: str, policy: str) -> None:
    """Raises INVALID_CONFIG where the log of a coordinator would lose what it keeps, by its age."""
    if topic in INTERNAL_TOPICS and {part.strip() for part in policy.split(",")} != {"compact"}:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {policy} for configuration {POLICY}: internal topic {topic} must be compacted, and nothing "
            "else, for whatever it keeps may be old.",
        )


def offsets_topic(config: BrokerConfig, live_brokers: int) -> NewTopic:
    """`__consumer_offsets`: compacted; replicated to as many of the wanted replicas as there are brokers now."""
    return NewTopic(
        name=OFFSETS_TOPIC,
        num_partitions=config.offsets_topic_num_partitions,
        replication_factor=max(1, min(config.offsets_topic_replication_factor, live_brokers)),
        configs=(
            ("cleanup.policy", "compact"),
            ("compression.type", "producer"),
            ("segment.bytes", str(config.offsets_topic_segment_bytes)),
        ),
    )


def transaction_topic(config: BrokerConfig, live_brokers: int) -> NewTopic:
    """`__transaction_state`: compacted, never led by a replica that was not in sync, replicated as the offsets are."""
    replicas = max(1, min(config.transaction_state_log_replication_factor, live_brokers))
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
