"""Compares a topology with the topics of the cluster: how many tasks there are, and which internal topics are missing.

As in Kafka Streams, a repartition topic has as many partitions as the largest of the topics from which its records are
derived, a changelog topic has as many as the topics that its subtopology reads, and topics that are joined must have
the same number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.ground.commands import InternalTopic
from kpybroker.groups.streams.topology import Topology, copartitioned, sources
from kpybroker.metadata.image import Image
from kpybroker.wire.stored import streams_group as stored

MISSING_SOURCE_TOPICS, INCORRECTLY_PARTITIONED_TOPICS, MISSING_INTERNAL_TOPICS = 1, 2, 3
"""Kafka's codes of the states of a topology, in heartbeat responses."""
SHOWN_MAX = 3
"""The maximum number of topics in an error message."""


class ConfiguredSubtopology(NamedTuple):
    """A subtopology whose number of partitions is known. Internal topics by name."""

    task_count: int
    source_topics: tuple[str, ...]
    repartition_sinks: tuple[str, ...]
    repartition_sources: Mapping[str, InternalTopic]
    changelogs: Mapping[str, InternalTopic]


class Problem(NamedTuple):
    """The reason why no tasks can be assigned, as in heartbeat responses."""

    code: int
    detail: str


class ConfiguredTopology(NamedTuple):
    """A topology, compared with the topics of the cluster."""

    subtopologies: Mapping[str, ConfiguredSubtopology] | None = None
    """By id, in order; None if source topics are missing or wrongly partitioned."""
    missing: Mapping[str, InternalTopic] = {}
    """The internal topics to create."""
    problem: Problem | None = None

    @property
    def is_ready(self) -> bool:
        """Whether tasks can be assigned."""
        return self.problem is None


class _Wrong(Exception):
    """The topics do not fit the topology."""

    def __init__(self, code: int, detail: str) -> None:
        self.problem = Problem(code, detail)


def configured(topology: Topology, image: Image) -> ConfiguredTopology:
    """The result of the comparison of a topology with the topics of the cluster. Raises STREAMS_INVALID_TOPOLOGY if no
    topics could ever fit it."""
    try:
        lacking = sorted(
            {
                topic
                for each in topology.subtopologies.values()
                for topic in each.source_topics
                if topic not in image.readable
            }
        )
        if lacking:
            raise _Wrong(MISSING_SOURCE_TOPICS, f"Source topics {_shown(lacking)} are missing.")
        subtopologies = _subtopologies(topology, image)
        missing = _missing(subtopologies.values(), image)
    except _Wrong as wrong:
        return ConfiguredTopology(problem=wrong.problem)
    problem = None
    if missing:
        problem = Problem(MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {_shown(sorted(missing))}")
    return ConfiguredTopology(subtopologies, missing, problem)


def _subtopologies(topology: Topology, image: Image) -> dict[str, ConfiguredSubtopology]:
    decided = _decided(topology, image)

    def internal(topics: Iterable[stored.TopicInfo]) -> dict[str, InternalTopic]:
        return {
            topic.name: InternalTopic(
                topic.partitions or decided[topic.name],
                topic.replication_factor,
                {each.key: each.value for each in topic.topic_configs},
            )
            for topic in topics
        }

    return {
        name: ConfiguredSubtopology(
            max(_count(topic, image, decided) for topic in sources(each)),
            tuple(each.source_topics),
            tuple(each.repartition_sink_topics),
            internal(each.repartition_source_topics),
            internal(each.state_changelog_topics),
        )
        for name, each in sorted(topology.subtopologies.items())
    }


def _missing(subtopologies: Iterable[ConfiguredSubtopology], image: Image) -> dict[str, InternalTopic]:
    missing = {}
    for each in subtopologies:
        for name, wanted in (*each.repartition_sources.items(), *each.changelogs.items()):
            known = image.readable.get(name)
            if known is None:
                missing[name] = wanted
            elif len(known.partitions) != wanted.partitions:
                raise _Wrong(
                    INCORRECTLY_PARTITIONED_TOPICS,
                    f"Existing topic {name} has different number of partitions: expected {wanted.partitions}, found "
                    f"{len(known.partitions)}",
                )
    return missing


# -- numbers of partitions --------------------------------------------------------------------------------------------


def _count(topic: str, image: Image, decided: Mapping[str, int]) -> int:
    known = image.readable.get(topic)
    return decided[topic] if known is None else len(known.partitions)


def _decided(topology: Topology, image: Image) -> dict[str, int]:
    """Internal topic -> its number of partitions."""
    ordered = [each for _, each in sorted(topology.subtopologies.items())]
    repartitions = {topic.name: topic.partitions for each in ordered for topic in each.repartition_source_topics}
    fixed = {name: count for name, count in repartitions.items() if count}
    decided = _repartitions(ordered, fixed, image)
    if not repartitions.keys() <= decided.keys():
        raise KafkaError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            "Failed to compute number of partitions for all repartition topics, because a repartition source topic is "
            "never used as a sink topic.",
        )
    for each in ordered:
        for group in copartitioned(each):
            counts = {topic: _count(topic, image, decided) for topic in group}
            decided.update(_copartition(counts, repartitions, fixed))
    for each in ordered:
        most = max(_count(topic, image, decided) for topic in sources(each))
        decided.update((topic.name, most) for topic in each.state_changelog_topics)
    return decided


def _repartitions(ordered: list[stored.Subtopology], fixed: Mapping[str, int], image: Image) -> dict[str, int]:
    """The partitions of the repartition topics: the given number, else the most partitions of the topics that the
    subtopology reads that writes them. These may be repartition topics in turn."""
    decided = dict(fixed)
    waiting = ordered
    while waiting:
        left = []
        for each in waiting:
            sinks = [sink for sink in each.repartition_sink_topics if sink not in decided]
            counts = [decided[topic.name] for topic in each.repartition_source_topics if topic.name in decided]
            counts += [len(image.readable[topic].partitions) for topic in each.source_topics]
            if sinks and counts:
                decided.update(dict.fromkeys(sinks, max(counts)))
            elif sinks:
                left.append(each)
        if len(left) == len(waiting):
            raise KafkaError(
                ErrorCode.STREAMS_INVALID_TOPOLOGY,
                "Failed to compute number of partitions for all repartition topics. There may be loops in the topology "
                "that cannot be resolved.",
            )
        waiting = left
    return decided


def _copartition(
    counts: Mapping[str, int], repartitions: Mapping[str, int], fixed: Mapping[str, int]
) -> dict[str, int]:
    """The partitions of the repartition topics among topics that are joined, with these numbers of partitions."""
    fixed_here = counts.keys() & fixed.keys()
    given = (counts.keys() - repartitions.keys()) or fixed_here
    if not counts:
        return {}
    if len({counts[topic] for topic in given}) > 1:
        shown = ", ".join(f"{topic}={counts[topic]}" for topic in sorted(given))
        raise _Wrong(
            INCORRECTLY_PARTITIONED_TOPICS, f"Following topics do not have the same number of partitions: [{{{shown}}}]"
        )
    wanted = max(counts[topic] for topic in given or counts)
    for topic in sorted(fixed_here):
        if counts[topic] != wanted:
            raise _Wrong(
                INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{counts[topic]}] of repartition topic [{topic}] doesn't match number of "
                f"partitions [{wanted}] of the source topic.",
            )
    return dict.fromkeys(counts.keys() & repartitions.keys(), wanted)


def _shown(topics: list[str]) -> str:
    more = len(topics) - SHOWN_MAX
    return ", ".join(topics[:SHOWN_MAX]) + (f" and {more} additional topics" if more > 0 else "")
