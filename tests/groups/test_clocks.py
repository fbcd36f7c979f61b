"""Tests that sessions and rebalances use the steady clock, and stored times use the wall clock."""

from __future__ import annotations

import pytest

from kpybroker.groups.ground.commands import CommitOffsets, ConsumerHeartbeat, DescribeGroup, PartitionCommit
from kpybroker.groups.ground.settings import GroupSettings
from kpybroker.wire.rpc import consumer_group_heartbeat as rpc
from tests.groups.stage import Stage, join, sync

SESSION_MS, REBALANCE_MS = 10_000, 8_000
INTERVAL_MS = 5_000
jumps = pytest.mark.parametrize("jump_ms", [-600_000, -1, 1, 600_000])


def member(stage: Stage) -> str:
    """The first member of a stable generation."""
    ticket, answers, _ = stage.ask(join(version=3, session_ms=SESSION_MS, rebalance_ms=REBALANCE_MS))
    joined = dict(answers)[ticket]
    assert not stage.answer(sync(joined.member_id, joined.generation_id)).error_code
    return str(joined.member_id)


def members(stage: Stage) -> int:
    return len(stage.answer(DescribeGroup("g")).members)


@jumps
def test_a_silent_member_is_removed_after_its_session_and_not_before(jump_ms: int) -> None:
    stage = Stage()
    member(stage)
    stage.ahead_ms = jump_ms
    stage.wait(SESSION_MS - 1)
    assert members(stage) == 1
    stage.wait(1)
    assert members(stage) == 0


@jumps
def test_a_rebalance_ends_in_time(jump_ms: int) -> None:
    stage = Stage()
    ticket, answers, _ = stage.ask(join(version=3, session_ms=60_000, rebalance_ms=REBALANCE_MS))
    first = dict(answers)[ticket].member_id
    assert not stage.answer(sync(first, 1)).error_code
    waiting, answers, _ = stage.ask(join(version=3, session_ms=60_000, rebalance_ms=REBALANCE_MS))
    assert not answers
    stage.ahead_ms = jump_ms
    assert not stage.wait(REBALANCE_MS - 1)
    ((answered, told),) = stage.wait(1)
    assert answered == waiting
    assert [each.member_id for each in told.members] == [told.member_id] != [first]


def beat(stage: Stage, member_id: str, epoch: int) -> rpc.Response:
    request = rpc.Request(group_id="g", member_id=member_id, member_epoch=epoch, rebalance_timeout_ms=REBALANCE_MS)
    if epoch == 0:
        request.subscribed_topic_names, request.topic_partitions = ["t"], []
    answer: rpc.Response = stage.answer(ConsumerHeartbeat(request, "c", "/127.0.0.1"))
    return answer


@jumps
def test_a_silent_consumer_is_removed_after_its_session_and_not_before(jump_ms: int) -> None:
    stage = Stage()
    stage.topic("t", 1)
    beat(stage, "a", 0)
    stage.ahead_ms = jump_ms
    stage.wait(stage.settings.consumer_session_timeout_ms - 1)
    assert "a" in stage.machine.kinds["consumer"].groups["g"].members
    stage.wait(1)
    assert not stage.machine.kinds["consumer"].groups["g"].members


@jumps
@pytest.mark.parametrize("restarts", [False, True])
def test_the_next_assignment_waits_for_its_interval_and_no_longer(jump_ms: int, restarts: bool) -> None:
    stage = Stage(GroupSettings(consumer_assignment_interval_ms=INTERVAL_MS, consumer_min_assignment_interval_ms=0))
    stage.topic("t", 2)
    beat(stage, "a", 0)
    decided = stage.machine.kinds["consumer"].groups["g"].assignment_epoch
    stage.ahead_ms = jump_ms
    if restarts:
        stage.restart()
    beat(stage, "b", 0)
    group = stage.machine.kinds["consumer"].groups["g"]
    is_early = restarts and jump_ms == 600_000  # to the new coordinator, the stored time is long ago
    assert (group.assignment_epoch > decided) == is_early
    stage.wait(INTERVAL_MS)
    beat(stage, "b", 0)
    assert group.assignment_epoch > decided


def test_stored_times_use_the_wall_clock() -> None:
    stage = Stage()
    stage.ahead_ms = 600_000
    commit = CommitOffsets("g", "", None, -1, -1, [("t", bytes(16), [PartitionCommit(0, 1, -1, "")])], True)
    stage.answer(commit)
    wall_ms = stage.now_ms + stage.ahead_ms
    assert stage.machine.offsets.of("g")["t", 0].commit_timestamp_ms == wall_ms
    assert stage.log[-1].timestamp_ms == wall_ms
