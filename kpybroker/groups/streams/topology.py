"""The topology of a streams application, as its clients describe it (KIP-1071)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.rpc import streams_group_heartbeat
from kpybroker.wire.stored import streams_group as stored

SUBTOPOLOGIES_MAX, TOPICS_MAX = 500, 5_000
"""The maximum number of subtopologies in a topology, and of topics and members of copartition groups."""


class Topology:
    """Subtopologies by id, with the topics that they read and write."""

    __slots__ = ("epoch", "required", "subtopologies", "subtopology_of")

    def __init__(self, epoch: int, subtopologies: Iterable[stored.Subtopology]) -> None:
        self.epoch = epoch
        self.subtopologies: dict[str, stored.Subtopology] = {each.subtopology_id: each for each in subtopologies}
        self.subtopology_of: dict[str, str] = {
            topic: name for name, each in self.subtopologies.items() for topic in sources(each)
        }
        """Source topic, including repartition topics -> the subtopology that reads it."""
        self.required = frozenset(self.subtopology_of).union(
            topic.name for each in self.subtopologies.values() for topic in each.state_changelog_topics
        )
        """The topics without which no task can run."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Topology):
            return NotImplemented
        return self.epoch == other.epoch and self.subtopologies == other.subtopologies


def sources(subtopology: stored.Subtopology) -> Iterator[str]:
    """The topics that a subtopology reads."""
    return chain(subtopology.source_topics, (topic.name for topic in subtopology.repartition_source_topics))


def copartitioned(subtopology: stored.Subtopology) -> Iterator[frozenset[str]]:
    """The groups of topics that must have the same number of partitions."""
    for group in subtopology.copartition_groups:
        yield frozenset(
            chain(
                (subtopology.source_topics[at] for at in group.source_topics),
                (subtopology.repartition_source_topics[at].name for at in group.repartition_source_topics),
            )
        )


def topology_of(told: streams_group_heartbeat.Topology) -> Topology:
    """The topology in a heartbeat. Raises STREAMS_INVALID_TOPOLOGY."""
    if told.epoch < 0:
        raise _invalid(f"The topology epoch {told.epoch} is negative.")
    count = sum(
        len(each.source_topics)
        + len(each.repartition_sink_topics)
        + len(each.repartition_source_topics)
        + len(each.state_changelog_topics)
        + sum(1 + len(group.source_topics) + len(group.repartition_source_topics) for group in each.copartition_groups)
        for each in told.subtopologies
    )
    if len(told.subtopologies) > SUBTOPOLOGIES_MAX or count > TOPICS_MAX:
        raise _invalid(
            f"The topology has {len(told.subtopologies)} subtopologies, of at most {SUBTOPOLOGIES_MAX}, and {count} "
            f"topics and members of copartition groups, of at most {TOPICS_MAX}."
        )
    topology = Topology(told.epoch, map(_subtopology, told.subtopologies))
    if len(topology.subtopologies) < len(told.subtopologies):
        raise _invalid("Two subtopologies have the same id.")
    for name, each in topology.subtopologies.items():
        if next(sources(each), None) is None:
            raise _invalid(f"No source topics found for subtopology {name}")
        for group in each.copartition_groups:
            _check_indexes(name, group.source_topics, len(each.source_topics))
            _check_indexes(name, group.repartition_source_topics, len(each.repartition_source_topics))
        for topic in (*each.repartition_source_topics, *each.state_changelog_topics):
            if topic.partitions < 0:
                raise _invalid(f"Internal topic {topic.name} has a negative number of partitions.")
    return topology


def _check_indexes(name: str, indexes: list[int], count: int) -> None:
    if any(not 0 <= at < count for at in indexes):
        raise _invalid(f"A copartition group of subtopology {name} refers to a topic that it does not have.")


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, why)


def _subtopology(told: streams_group_heartbeat.Subtopology) -> stored.Subtopology:
    return stored.Subtopology(
        subtopology_id=told.subtopology_id,
        source_topics=told.source_topics,
        source_topic_regex=told.source_topic_regex,
        state_changelog_topics=_topics(told.state_changelog_topics),
        repartition_sink_topics=told.repartition_sink_topics,
        repartition_source_topics=_topics(told.repartition_source_topics),
        copartition_groups=[
            stored.CopartitionGroup(
                source_topics=group.source_topics,
                source_topic_regex=group.source_topic_regex,
                repartition_source_topics=group.repartition_source_topics,
            )
            for group in told.copartition_groups
        ],
    )


def _topics(told: Iterable[Any]) -> list[stored.TopicInfo]:
    return [
        stored.TopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=[stored.TopicConfig(key=each.key, value=each.value) for each in topic.topic_configs],
        )
        for topic in told
    ]
