"""Tests that a delivery log follows its topic: its partitions, its replicas and the limit of partitions."""

from __future__ import annotations

import pytest

from kpybroker.config.delivery_keys import SCHEDULED
from kpybroker.controller.assignments import new_partition
from kpybroker.controller.commands import CreatePartitions, CreateTopics, NewPartitions, NewTopic
from kpybroker.errors import ErrorCode
from kpybroker.machine.contract import Stored
from tests.controller.stage import Stage

LOG = "__scheduled.t"


def _stage(**settings: str) -> Stage:
    stage = Stage(3, **settings)
    stage.one(CreateTopics((NewTopic("t", 2, 2, configs=((SCHEDULED, "true"),)),)))
    return stage


def _replicas(stage: Stage, topic: str) -> list[tuple[int, ...]]:
    return [tuple(stage.partition(topic, index).replicas) for index in range(len(stage.state.topics[topic].partitions))]


def test_a_log_has_the_replicas_of_its_topic() -> None:
    stage = _stage()
    stage.one(CreatePartitions((NewPartitions("t", 5),)))
    assert len(_replicas(stage, "t")) == 5
    assert _replicas(stage, LOG) == _replicas(stage, "t")
    assert stage.replayed() == stage.state


def test_a_log_gets_the_partitions_that_another_controller_has_not_added() -> None:
    stage = _stage()
    topic_id = stage.state.topics["t"].topic_id
    for index in (2, 3):
        message = new_partition(stage.state, topic_id, index, (1, 2))
        stage.machine.apply(Stored(None, None, 0, message=message))
    stage.one(CreatePartitions((NewPartitions("t", 5),)))
    assert _replicas(stage, LOG) == _replicas(stage, "t")
    assert _replicas(stage, LOG)[2:4] == [(1, 2), (1, 2)]


@pytest.mark.parametrize(("most", "code"), [("9", ErrorCode.POLICY_VIOLATION), ("10", ErrorCode.NONE)])
def test_both_count_for_the_limit_of_partitions(most: str, code: ErrorCode) -> None:
    stage = _stage(kpybroker_max_partitions=most)
    assert stage.code(CreatePartitions((NewPartitions("t", 5),)))[0] == code
