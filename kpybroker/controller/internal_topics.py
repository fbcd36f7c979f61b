"""Topics the broker makes for itself, with the settings Kafka gives them."""

from __future__ import annotations

from kpybroker.config import BrokerConfig
from kpybroker.controller.commands import NewTopic

OFFSETS_TOPIC = "__consumer_offsets"
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
