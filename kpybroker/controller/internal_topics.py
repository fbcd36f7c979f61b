"""Topics the broker makes for itself, with the settings Kafka gives them."""

from __future__ import annotations

from kpybroker.config import BrokerConfig
from kpybroker.controller.commands import NewTopic

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = "__transaction_state"
METADATA_TOPIC = "__cluster_metadata"


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
