"""The topics in the topology of a streams application (KIP-1071)."""

from __future__ import annotations

from itertools import chain

from kpybroker.controller.names import invalid_topic_name
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.topics import INTERNAL_TOPICS
from kpybroker.wire.rpc import streams_group_describe, streams_group_heartbeat


def topics_of(topology: streams_group_heartbeat.Topology | streams_group_describe.Topology) -> dict[str, None]:
    """All topics in a topology, each once."""
    return dict.fromkeys(
        topic
        for each in topology.subtopologies or ()
        for topic in chain(
            each.source_topics,
            each.repartition_sink_topics,
            (source.name for source in each.repartition_source_topics),
            (changelog.name for changelog in each.state_changelog_topics),
        )
    )


def check_topic_names(topology: streams_group_heartbeat.Topology) -> None:
    """Raises STREAMS_INVALID_TOPOLOGY."""
    topics = topics_of(topology)
    prohibited = [name for name in topics if name in INTERNAL_TOPICS]
    if prohibited:
        raise KafkaError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            f"Use of Kafka internal topics {','.join(prohibited)} in a Kafka Streams topology is prohibited.",
        )
    invalid = [name for name in topics if invalid_topic_name(name) is not None]
    if invalid:
        raise KafkaError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY, f"Topic names {','.join(invalid)} are not valid topic names."
        )
