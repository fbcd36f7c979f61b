"""How many partitions the internal topics of a streams application need, and which topics do not fit."""

from __future__ import annotations

from typing import Any

import pytest

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.groups.streams.configuration import (
    INCORRECTLY_PARTITIONED_TOPICS,
    MISSING_INTERNAL_TOPICS,
    MISSING_SOURCE_TOPICS,
    ConfiguredTopology,
    configured,
)
from kpybroker.groups.streams.topology import topology_of
from kpybroker.wire.rpc.streams_group_heartbeat import CopartitionGroup, Subtopology, TopicInfo, Topology
from tests.groups.stage import Stage


def sub(
    name: str,
    *sources: str,
    reads: dict[str, int] | None = None,
    writes: tuple[str, ...] = (),
    keeps: tuple[str, ...] = (),
    joins: CopartitionGroup | None = None,
) -> Subtopology:
    """A subtopology; reads: its repartition topics with their fixed number of partitions, or 0."""
    return Subtopology(
        subtopology_id=name,
        source_topics=list(sources),
        repartition_source_topics=[TopicInfo(name=topic, partitions=count) for topic, count in (reads or {}).items()],
        repartition_sink_topics=list(writes),
        state_changelog_topics=[TopicInfo(name=topic) for topic in keeps],
        copartition_groups=[] if joins is None else [joins],
    )


def compared(topics: dict[str, int], *subtopologies: Subtopology) -> ConfiguredTopology:
    """The topology beside these topics with their numbers of partitions."""
    stage = Stage()
    for name, count in topics.items():
        stage.topic(name, count)
    return configured(topology_of(Topology(subtopologies=list(subtopologies))), stage.image)


def partitions(found: ConfiguredTopology) -> dict[str, int]:
    return {name: topic.partitions for name, topic in found.missing.items()}


def test_partitions_pass_through_repartition_topics() -> None:
    found = compared(
        {"wide": 6, "narrow": 2},
        sub("2", reads={"second": 0}, keeps=("changes",)),
        sub("1", reads={"first": 0}, writes=("second",)),
        sub("0", "wide", "narrow", writes=("first",)),
    )
    assert partitions(found) == {"first": 6, "second": 6, "changes": 6}
    assert found.subtopologies is not None
    assert {name: each.task_count for name, each in found.subtopologies.items()} == {"0": 6, "1": 6, "2": 6}
    assert found.problem is not None
    assert found.problem.code == MISSING_INTERNAL_TOPICS
    assert found.problem.detail == "Internal topics are missing: changes, first, second"


def test_a_fixed_number_counts() -> None:
    found = compared({"wide": 6}, sub("0", "wide", writes=("r",)), sub("1", reads={"r": 3}, keeps=("c",)))
    assert partitions(found) == {"r": 3, "c": 3}


BOTH = CopartitionGroup(source_topics=[0], repartition_source_topics=[0])
ONLY_REPARTITIONS = CopartitionGroup(repartition_source_topics=[0, 1])


def test_what_is_joined_gets_the_partitions_of_the_source() -> None:
    writer = sub("0", "narrow", writes=("r",))
    found = compared({"wide": 6, "narrow": 2}, writer, sub("1", "wide", reads={"r": 0}, joins=BOTH))
    assert partitions(found) == {"r": 6}


def test_joined_repartition_topics_get_the_most_partitions_or_the_fixed_number() -> None:
    def joined(**counts: int) -> ConfiguredTopology:
        writers = (sub("0", "wide", writes=("r",)), sub("1", "narrow", writes=("s",)))
        return compared({"wide": 6, "narrow": 2}, *writers, sub("2", reads=counts, joins=ONLY_REPARTITIONS))

    assert partitions(joined(r=0, s=0)) == {"r": 6, "s": 6}
    assert partitions(joined(r=0, s=4)) == {"r": 4, "s": 4}
    problem = joined(r=3, s=4).problem
    assert problem is not None
    assert problem.code == INCORRECTLY_PARTITIONED_TOPICS


@pytest.mark.parametrize(
    ("topics", "subtopologies", "code", "detail"),
    [
        (
            {},
            [sub("0", "b", "a", "d", "c")],
            MISSING_SOURCE_TOPICS,
            "Source topics a, b, c and 1 additional topics are missing.",
        ),
        (
            {"a": 1, "b": 2},
            [sub("0", "a", "b", joins=CopartitionGroup(source_topics=[0, 1]))],
            INCORRECTLY_PARTITIONED_TOPICS,
            "Following topics do not have the same number of partitions: [{a=1, b=2}]",
        ),
        (
            {"a": 1, "b": 2},
            [sub("0", "a", writes=("r",)), sub("1", "b", reads={"r": 3}, joins=BOTH)],
            INCORRECTLY_PARTITIONED_TOPICS,
            "Number of partitions [3] of repartition topic [r] doesn't match number of partitions [2] of the source "
            "topic.",
        ),
        (
            {"a": 2, "c": 3},
            [sub("0", "a", keeps=("c",))],
            INCORRECTLY_PARTITIONED_TOPICS,
            "Existing topic c has different number of partitions: expected 2, found 3",
        ),
    ],
)
def test_topics_that_do_not_fit(
    topics: dict[str, int], subtopologies: list[Subtopology], code: int, detail: str
) -> None:
    found = compared(topics, *subtopologies)
    assert found.problem == (code, detail)
    assert not found.is_ready
    assert not found.missing


@pytest.mark.parametrize(
    "subtopologies",
    [
        [sub("0", reads={"a": 0}, writes=("b",)), sub("1", reads={"b": 0}, writes=("a",))],
        [sub("0", "t", reads={"nobody": 0})],
        [sub("0", "t", joins=CopartitionGroup(source_topics=[1]))],
        [sub("0", "t", joins=CopartitionGroup(repartition_source_topics=[-1]))],
    ],
)
def test_topologies_that_no_topics_fit(subtopologies: list[Any]) -> None:
    with pytest.raises(KafkaError) as refused:
        compared({"t": 1}, *subtopologies)
    assert refused.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY
