"""CreateTopics, DeleteTopics and CreatePartitions: invalid requests are refused with the same error codes as in Apache
Kafka."""

from __future__ import annotations

import pytest

from kpybroker.config.resource_type import ResourceType
from kpybroker.controller.commands import (
    ZERO_UUID,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    NewPartitions,
    NewTopic,
)
from kpybroker.errors import ErrorCode as E
from kpybroker.errors import KafkaError
from tests.controller.stage import Stage


def create(*topics: NewTopic, validate_only: bool = False) -> CreateTopics:
    return CreateTopics(topics, validate_only)


def by_hand(*replicas: tuple[int, ...], first: int = 0) -> tuple[tuple[int, tuple[int, ...]], ...]:
    return tuple(enumerate(replicas, first))


@pytest.mark.parametrize(
    ("topic", "code", "said"),
    [
        (NewTopic("", 1, 1), E.INVALID_TOPIC_EXCEPTION, "empty string"),
        (NewTopic(".", 1, 1), E.INVALID_TOPIC_EXCEPTION, "'.' is not allowed"),
        (NewTopic("..", 1, 1), E.INVALID_TOPIC_EXCEPTION, "'..' is not allowed"),
        (NewTopic("a b", 1, 1), E.INVALID_TOPIC_EXCEPTION, "one or more characters"),
        (NewTopic("ünï", 1, 1), E.INVALID_TOPIC_EXCEPTION, "one or more characters"),
        (NewTopic("a\n", 1, 1), E.INVALID_TOPIC_EXCEPTION, "one or more characters"),
        (NewTopic("x" * 250, 1, 1), E.INVALID_TOPIC_EXCEPTION, "max allowed length 249"),
        (NewTopic("x" * 249, 1, 1), E.NONE, None),
        (NewTopic("there_is", 1, 1), E.INVALID_TOPIC_EXCEPTION, "collides with existing topic: there.is"),
        (NewTopic("there.is", 1, 1), E.TOPIC_ALREADY_EXISTS, "already exists"),
        (NewTopic("__cluster_metadata", 1, 1), E.INVALID_REQUEST, "prohibited"),
        (NewTopic("p", 0, 1), E.INVALID_PARTITIONS, "non-positive"),
        (NewTopic("p", -2, 1), E.INVALID_PARTITIONS, "non-positive"),
        (NewTopic("p", 10_001, 1), E.POLICY_VIOLATION, "Excessively large"),
        (NewTopic("p", 2**31 - 1, 1), E.POLICY_VIOLATION, "Excessively large"),
        (NewTopic("p", 1, 0), E.INVALID_REPLICATION_FACTOR, "larger than 0"),
        (NewTopic("p", 1, -2), E.INVALID_REPLICATION_FACTOR, "larger than 0"),
        (NewTopic("p", 1, 3), E.INVALID_REPLICATION_FACTOR, "only 2 broker(s)"),
        (NewTopic("p", -1, -1), E.NONE, None),
        (NewTopic("p", -1, -1, by_hand((1,), (2,))), E.NONE, None),
        (NewTopic("p", 2, -1, by_hand((1,), (2,))), E.INVALID_REQUEST, "numPartitions was not set to -1"),
        (NewTopic("p", -1, 1, by_hand((1,), (2,))), E.INVALID_REQUEST, "replication factor was not set to -1"),
        (NewTopic("p", assignments=by_hand((1,), first=1)), E.INVALID_REPLICA_ASSIGNMENT, "consecutive 0-based"),
        (NewTopic("p", assignments=((0, (1,)), (0, (1,)))), E.INVALID_REPLICA_ASSIGNMENT, "multiple manual"),
        (NewTopic("p", assignments=by_hand((5,))), E.INVALID_REPLICA_ASSIGNMENT, "no such broker"),
        (NewTopic("p", assignments=by_hand((-1,))), E.INVALID_REPLICA_ASSIGNMENT, "no such broker"),
        (NewTopic("p", assignments=by_hand((1, 1))), E.INVALID_REPLICA_ASSIGNMENT, "more than once"),
        (NewTopic("p", assignments=by_hand(())), E.INVALID_REPLICA_ASSIGNMENT, "empty replica list"),
        (NewTopic("p", assignments=by_hand((1,), (1, 2))), E.INVALID_REPLICA_ASSIGNMENT, "not consistent"),
        (NewTopic("p", 1, 1, configs=(("nosuch", "1"),)), E.INVALID_CONFIG, "Unknown topic config name: nosuch"),
        (NewTopic("p", 1, 1, configs=(("retention.ms", None),)), E.INVALID_CONFIG, "Null value"),
    ],
)
def test_create(topic: NewTopic, code: E, said: str | None) -> None:
    stage = Stage(brokers=2)
    stage.ask(create(NewTopic("there.is", 1, 1)))
    answered, message = stage.code(create(topic))
    assert answered is code, message
    assert (said is None) == (message is None)
    assert said is None or said in (message or "")
    assert (topic.name in stage.state.topics) == (code in (E.NONE, E.TOPIC_ALREADY_EXISTS))


def test_one_refused_topic_does_not_affect_the_others() -> None:
    stage = Stage()
    results = stage.ask(
        create(*(NewTopic(name, 1, 1) for name in ("a", "twice", "no good", "twice", "b", "c.d", "c_d")))
    )
    assert [result.error_code for result in results] == [
        E.NONE,
        E.INVALID_REQUEST,
        E.INVALID_TOPIC_EXCEPTION,
        E.NONE,
        E.NONE,
        E.INVALID_TOPIC_EXCEPTION,
    ]
    assert set(stage.state.topics) == {"a", "b", "c.d"}


def test_validate_only_answers_and_writes_nothing() -> None:
    stage = Stage()
    written = len(stage.log)
    result = stage.one(create(NewTopic("a", 3, 1, configs=(("retention.ms", "77"),)), validate_only=True))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (E.NONE, 3, 1)
    assert result.configs == {"retention.ms": "77"}
    assert result.topic_id != ZERO_UUID
    assert len(stage.log) == written


def test_defaults_are_the_brokers() -> None:
    stage = Stage(brokers=3, num_partitions="5", default_replication_factor="2")
    result = stage.one(create(NewTopic("a")))
    assert (result.num_partitions, result.replication_factor) == (5, 2)


def test_partitions_of_the_cluster_are_limited() -> None:
    stage = Stage(kpybroker_max_partitions="3")
    stage.ask(create(NewTopic("a", 2, 1)))
    assert stage.code(create(NewTopic("b", 2, 1)))[0] is E.POLICY_VIOLATION
    assert stage.code(CreatePartitions((NewPartitions("a", 4),)))[0] is E.POLICY_VIOLATION
    assert stage.code(CreatePartitions((NewPartitions("a", 3),)))[0] is E.NONE


def test_a_new_partition_is_led_by_its_first_live_replica() -> None:
    stage = Stage(brokers=3)
    stage.ask(create(NewTopic("a", -1, -1, by_hand((2, 3, 1), (1, 2, 3)))))
    partition = stage.state.topics["a"].partitions[0]
    assert (partition.leader, partition.replicas, partition.isr) == (2, (2, 3, 1), (2, 3, 1))
    assert partition.directories == (bytes([2]) * 16, bytes([3]) * 16, bytes([1]) * 16)
    assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)


def test_delete_by_name_and_by_id() -> None:
    stage = Stage()
    made = stage.ask(create(*(NewTopic(name, 2, 1, configs=(("retention.ms", "5"),)) for name in ("a", "b", "c.d"))))
    results = stage.ask(
        DeleteTopics(
            (
                ("a", ZERO_UUID),
                (None, made[1].topic_id),
                ("nosuch", ZERO_UUID),
                (None, b"n" * 16),
                (None, ZERO_UUID),
                ("c.d", made[2].topic_id),
            )
        )
    )
    assert [result.error_code for result in results] == [
        E.NONE,
        E.NONE,
        E.UNKNOWN_TOPIC_OR_PARTITION,
        E.UNKNOWN_TOPIC_ID,
        E.INVALID_REQUEST,
        E.INVALID_REQUEST,
    ]
    assert [result.name for result in results[:2]] == ["a", "b"]
    assert list(stage.state.topics) == ["c.d"]
    assert stage.state.partition_count == 2


def test_a_topic_that_is_named_twice_is_not_deleted() -> None:
    stage = Stage()
    made = stage.one(create(NewTopic("a", 1, 1)))
    for second in (("a", ZERO_UUID), (None, made.topic_id)):
        assert stage.code(DeleteTopics((("a", ZERO_UUID), second)))[0] is E.INVALID_REQUEST
    assert "a" in stage.state.topics


def test_a_recreated_topic_is_another_one_and_inherits_nothing() -> None:
    stage = Stage()
    first = stage.one(create(NewTopic("a.b", 1, 1, configs=(("retention.ms", "5"),))))
    stage.ask(DeleteTopics((("a.b", ZERO_UUID),)))
    second = stage.one(create(NewTopic("a_b", 1, 1)))
    assert second.error_code is E.NONE
    assert second.topic_id != first.topic_id
    assert stage.state.config(ResourceType.TOPIC, "a.b") == {}


def test_deletion_can_be_switched_off() -> None:
    stage = Stage(delete_topic_enable="false")
    stage.ask(create(NewTopic("a", 1, 1)))
    assert stage.code(DeleteTopics((("a", ZERO_UUID),)))[0] is E.TOPIC_DELETION_DISABLED


@pytest.mark.parametrize(
    ("grown", "code", "said"),
    [
        (NewPartitions("a", 3), E.INVALID_PARTITIONS, "already has 3"),
        (NewPartitions("a", 2), E.INVALID_PARTITIONS, "2 would not be an increase"),
        (NewPartitions("a", -1), E.INVALID_PARTITIONS, "-1 would not be an increase"),
        (NewPartitions("a", 20_000), E.POLICY_VIOLATION, "Excessively large"),
        (NewPartitions("nosuch", 3), E.UNKNOWN_TOPIC_OR_PARTITION, "does not host"),
        (NewPartitions("a", 5, ((1,),)), E.INVALID_REPLICA_ASSIGNMENT, "only 1 assignment(s)"),
        (NewPartitions("a", 4, ((9,),)), E.INVALID_REPLICA_ASSIGNMENT, "no such broker"),
        (NewPartitions("a", 4, ((1, 1),)), E.INVALID_REPLICA_ASSIGNMENT, "more than once"),
        (NewPartitions("a", 4, ((1, 2),)), E.INVALID_REPLICA_ASSIGNMENT, "not consistent"),
        (NewPartitions("a", 4, ((),)), E.INVALID_REPLICA_ASSIGNMENT, "empty replica list"),
        (NewPartitions("a", 5, ((2,), (1,))), E.NONE, None),
        (NewPartitions("a", 7), E.NONE, None),
    ],
)
def test_grow(grown: NewPartitions, code: E, said: str | None) -> None:
    stage = Stage(brokers=2)
    stage.ask(create(NewTopic("a", 3, 1)))
    assert stage.code(CreatePartitions((grown,), validate_only=True))[0] is code
    assert len(stage.state.topics["a"].partitions) == 3
    answered, message = stage.code(CreatePartitions((grown,)))
    assert answered is code
    assert said is None or said in (message or "")
    assert len(stage.state.topics["a"].partitions) == (grown.total if code is E.NONE else 3)


def test_growing_a_topic_twice_in_one_request_is_refused() -> None:
    stage = Stage()
    stage.ask(create(NewTopic("a", 1, 1)))
    assert stage.code(CreatePartitions((NewPartitions("a", 2), NewPartitions("a", 3))))[0] is E.INVALID_REQUEST


def test_nothing_can_be_placed_while_every_broker_is_fenced() -> None:
    stage = Stage(brokers=0)
    assert stage.code(create(NewTopic("a", 1, 1)))[0] is E.INVALID_REPLICATION_FACTOR
    stage.join(1)
    stage.join(1, incarnation=2)
    assert stage.code(create(NewTopic("a", 1, 1)))[0] is E.NONE


def test_a_request_for_too_many_partitions_is_refused_as_a_whole() -> None:
    stage = Stage()
    with pytest.raises(KafkaError) as refused:
        stage.ask(create(NewTopic("a", 6000, 1), NewTopic("b", 6000, 1)))
    assert refused.value.code is E.POLICY_VIOLATION
