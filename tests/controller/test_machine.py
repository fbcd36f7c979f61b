"""Invariants of the controller: a replay gives the live state, the Image agrees with it, and no id is assigned
twice."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.commands import (
    AllocateProducerIds,
    AlterConfigs,
    AlterOp,
    BrokerHeartbeat,
    ChangeConfigs,
    Command,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    IncrementalAlterConfigs,
    NewPartitions,
    NewTopic,
    ReplaceConfigs,
)
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.machine.contract import Moment
from kpybroker.wire.stored import metadata as stored
from tests.controller.stage import Stage

NAMES = st.sampled_from(["a", "b", "a.b", "a_b", "c-1", "", "no good"])
SETTINGS = st.sampled_from(
    [("retention.ms", "5"), ("retention.ms", "x"), ("cleanup.policy", "compact"), ("nosuch", "1"), ("segment.ms", "9")]
)
KINDS = st.sampled_from([ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP, ResourceType.CLIENT_METRICS])
DIRECTORIES = st.lists(st.binary(min_size=16, max_size=16), max_size=2).map(tuple)
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        CreateTopics,
        st.lists(
            st.builds(NewTopic, NAMES, st.integers(-2, 4), st.integers(-1, 3), configs=st.tuples(SETTINGS)), max_size=3
        ).map(tuple),
        st.booleans(),
    ),
    st.builds(DeleteTopics, st.lists(st.tuples(NAMES, st.just(bytes(16))), max_size=2).map(tuple)),
    st.builds(CreatePartitions, st.tuples(st.builds(NewPartitions, NAMES, st.integers(0, 6))), st.booleans()),
    st.builds(AlterConfigs, st.tuples(st.builds(ReplaceConfigs, KINDS, NAMES, st.tuples(SETTINGS))), st.booleans()),
    st.builds(
        IncrementalAlterConfigs,
        st.tuples(
            st.builds(
                ChangeConfigs,
                KINDS,
                NAMES,
                st.tuples(st.builds(lambda s, op: (s[0], op, s[1]), SETTINGS, st.sampled_from(list(AlterOp)))),
            )
        ),
        st.booleans(),
    ),
    st.builds(
        BrokerHeartbeat,
        st.integers(1, 3),
        st.integers(0, 3),
        st.booleans(),
        st.booleans(),
        offline_log_dirs=DIRECTORIES,
        cordoned_log_dirs=st.none() | DIRECTORIES,
    ),
    st.builds(AllocateProducerIds, st.integers(1, 3), st.integers(0, 3)),
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(COMMANDS, max_size=12), st.lists(st.integers(1, 3), max_size=2))
def test_replay_equals_live_and_the_image_agrees(commands: list[Command], restarts: list[int]) -> None:
    stage = Stage(brokers=3)
    for command in commands:
        _try(stage, command)
    for incarnation, node_id in enumerate(restarts, 2):
        stage.join(node_id, incarnation=incarnation)
    state = stage.state
    assert stage.replayed() == state
    image = stage.image()
    assert {name: topic.topic_id for name, topic in state.topics.items()} == {
        name: topic.id for name, topic in image.topics.items()
    }
    for name, topic in state.topics.items():
        seen = image.topics[name].partitions
        assert [(p.leader, p.leader_epoch, p.partition_epoch, p.replicas, p.isr) for p in seen] == [
            (p.leader, p.leader_epoch, p.partition_epoch, p.replicas, p.isr) for p in topic.partitions.values()
        ]
        assert all(partition.leader in partition.isr for partition in seen)
    assert dict(image.configs) == state.configs
    assert {node_id: broker.fenced for node_id, broker in image.brokers.items()} == {
        node_id: broker.fenced for node_id, broker in state.brokers.items()
    }
    assert state.partition_count == sum(len(topic.partitions) for topic in state.topics.values())


def _try(stage: Stage, command: Command) -> None:
    with contextlib.suppress(KafkaError):
        stage.ask(command)


@given(st.lists(COMMANDS, max_size=5))
@settings(max_examples=30, deadline=None)
def test_deciding_changes_nothing(commands: list[Command]) -> None:
    stage = Stage(brokers=2)
    for command in commands:
        before = stage.replayed()
        stage.machine.decide(None, command, Moment(0, 0))  # type: ignore[arg-type]
        assert stage.state == before


def test_producer_ids_come_in_blocks_of_a_thousand_that_never_overlap() -> None:
    stage = Stage(brokers=2)
    blocks = [stage.ask(AllocateProducerIds(node_id, stage.epochs[node_id])) for node_id in (1, 2, 1)]
    assert [(block.first, block.count) for block in blocks] == [(0, 1000), (1000, 1000), (2000, 1000)]
    with pytest.raises(KafkaError) as refused:
        stage.ask(AllocateProducerIds(1, 999))
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_an_open_metadata_transaction_takes_effect_at_its_end() -> None:
    stage = Stage(brokers=0)
    topic_id = bytes(range(16))
    for record in (
        stored.BeginTransactionRecord(name="x"),
        stored.TopicRecord(name="a", topic_id=topic_id),
        stored.AbortTransactionRecord(reason="x"),
        stored.BeginTransactionRecord(name="x"),
        stored.TopicRecord(name="b", topic_id=topic_id),
    ):
        stage.state.replay(record)
        assert not stage.state.topics
    stage.state.replay(stored.EndTransactionRecord())
    assert list(stage.state.topics) == ["b"]


def test_a_record_without_effect_is_accepted_and_an_unknown_one_is_damage() -> None:
    stage = Stage(brokers=1)
    before = stage.replayed()
    stage.state.replay(stored.NoOpRecord())
    assert stage.state == before
    with pytest.raises(Damage, match="which this version of kpybroker does not support"):
        stage.state.replay(stored.BrokerEndpoint())


def test_thousands_of_topics_in_one_request_or_one_by_one() -> None:
    stage = Stage()
    names = [f"topic-{number}" for number in range(2000)]
    results = stage.ask(CreateTopics(tuple(NewTopic(name, 1, 1) for name in names[:1000])))
    results += [stage.one(CreateTopics((NewTopic(name, 1, 1),))) for name in names[1000:]]
    assert [result.name for result in results] == names
    assert len({result.topic_id for result in results}) == 2000
    assert len(stage.image().topics) == 2000
