"""Tests the share coordinator's machine: the requests that it refuses, and the state after a replay, pruned or not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode
from kpybroker.machine.contract import Tick
from kpybroker.shares import machine as shares_machine
from kpybroker.shares.batches import STORED_STATES, StateBatch
from kpybroker.shares.commands import BeginRound, Delete, FindNeeded, Initialize, Read, ReadSummary, Write
from kpybroker.shares.machine import ShareSettings
from kpybroker.shares.state import UNINITIALIZED
from tests.shares.stage import Stage, hard, image_of, key

INTERVAL_MS = ShareSettings().share_coordinator_cold_partition_snapshot_interval_ms
KEYS = st.builds(key, st.integers(0, 2), st.integers(0, 3), st.sampled_from(["g", "a:b"]))
EPOCHS = st.integers(-1, 4)
BATCHES = st.lists(
    st.builds(
        lambda first, size, state, deliveries: StateBatch(first, first + size, state, deliveries),
        st.integers(0, 30),
        st.integers(0, 5),
        st.sampled_from(sorted(STORED_STATES)),
        st.integers(0, 3),
    ),
    max_size=3,
)
COMMANDS = st.one_of(
    st.builds(Initialize, KEYS, EPOCHS, st.integers(-1, 9)),
    st.builds(Read, KEYS, EPOCHS),
    st.builds(Write, KEYS, EPOCHS, EPOCHS, st.integers(-1, 20), st.integers(-1, 9), BATCHES),
    st.builds(Delete, KEYS),
    st.builds(ReadSummary, KEYS),
    st.just(BeginRound()),
    st.just(Tick()),
)
STEPS = st.one_of(COMMANDS, st.sampled_from(["prune", "restart", "wait", "drop"]))


def write(start: int = 0, *batches: StateBatch, state_epoch: int = 1, leader_epoch: int = 0, **of: Any) -> Write:
    return Write(key(**of), state_epoch, leader_epoch, start, -1, batches)


def ready(settings: ShareSettings | None = None) -> Stage:
    stage = Stage(settings)
    assert stage.code(Initialize(key(), 1, UNINITIALIZED)) == 0
    return stage


@given(st.lists(STEPS, max_size=40))
@settings(max_examples=150)
def test_a_replay_finds_what_is_known_also_after_pruning(steps: list[Any]) -> None:
    stage = Stage(ShareSettings(share_coordinator_snapshot_update_records_per_snapshot=2))
    for step in steps:
        if step == "prune":
            stage.prune(stage.ask(FindNeeded()))
        elif step == "restart":
            stage.restart()
        elif step == "wait":
            stage.wait(INTERVAL_MS)
        elif step == "drop":
            stage.image = image_of([key().topic_id])
        else:
            stage.ask(step)
        assert hard(stage.replayed()) == hard(stage.machine)


@given(st.lists(COMMANDS, max_size=30))
def test_a_refusal_changes_nothing(commands: list[Any]) -> None:
    stage = Stage()
    for command in commands:
        before, end = dict(stage.machine.states), stage.end
        if stage.code(command):
            assert (stage.machine.states, stage.end) == (before, end)


def test_nothing_is_read_or_written_before_it_is_begun() -> None:
    stage = Stage()
    assert stage.code(Read(key(), 0)) == stage.code(write()) == ErrorCode.INVALID_REQUEST
    assert stage.ask(ReadSummary(key())) is None


def test_an_earlier_leader_is_fenced_by_a_later_one_that_reads() -> None:
    stage = ready()
    assert stage.code(write(5, StateBatch(5, 6, 2, 1), leader_epoch=2)) == 0
    assert stage.ask(Read(key(), 3)).batches == (StateBatch(5, 6, 2, 1),)
    assert stage.code(Read(key(), 2)) == stage.code(write(leader_epoch=2)) == ErrorCode.FENCED_LEADER_EPOCH
    stage.restart()
    assert stage.code(write(leader_epoch=2)) == ErrorCode.FENCED_LEADER_EPOCH
    assert stage.code(write(leader_epoch=3)) == 0


def test_what_a_later_group_epoch_began_is_not_written_by_an_earlier_one() -> None:
    stage = ready()
    assert stage.code(Initialize(key(), 2, 7)) == 0
    assert stage.code(write()) == stage.code(Initialize(key(), 1, 0)) == ErrorCode.FENCED_STATE_EPOCH
    assert stage.ask(ReadSummary(key())).start == 7


def test_a_new_beginning_forgets_the_batches() -> None:
    stage = ready()
    stage.ask(write(0, StateBatch(3, 4, 2, 1)))
    stage.ask(Initialize(key(), 2, 9))
    found = stage.ask(ReadSummary(key()))
    assert (found.start, found.batches, found.complete_count) == (9, (), 0)


@pytest.mark.parametrize(
    ("start", "use"),
    [
        (0, write(0, StateBatch(3, 4, 2, 1))),
        (0, Read(key(), 1)),
        (UNINITIALIZED, write(7)),
    ],
)
def test_a_late_retry_undoes_nothing(start: int, use: Any) -> None:
    """The simulator's seed 1125: an initialization was retried after members had joined and consumed."""
    stage = Stage()
    assert stage.code(Initialize(key(), 1, start)) == 0
    assert stage.code(use) == 0
    before, end = stage.ask(ReadSummary(key())), stage.end
    assert stage.code(Initialize(key(), 1, start)) == 0
    assert (stage.ask(ReadSummary(key())), stage.end) == (before, end)


def test_offsets_may_be_altered_twice_in_one_epoch() -> None:
    stage = Stage()
    for start in (9, 5):
        assert stage.code(Initialize(key(), 1, start)) == 0
        assert stage.ask(ReadSummary(key())).start == start


def test_what_is_deleted_is_gone_and_may_be_deleted_again() -> None:
    stage = ready()
    assert stage.code(Delete(key())) == stage.code(Delete(key())) == 0
    assert stage.ask(ReadSummary(key())) is None
    assert stage.end == 2


def test_unknown_topics_and_partitions_are_refused() -> None:
    stage = ready()
    stage.image = image_of([])
    for command in (Initialize(key(), 1, 0), Read(key(), 0), write(), Delete(key()), ReadSummary(key())):
        assert stage.code(command) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        negative = command._replace(key=key(partition=-1))
        assert stage.code(negative) == ErrorCode.INVALID_REQUEST


def test_batches_that_cannot_be_are_refused() -> None:
    stage = ready()
    for batch in (StateBatch(5, 4, 0, 1), StateBatch(-1, 4, 0, 1), StateBatch(1, 4, 1, 1), StateBatch(1, 4, 0, -1)):
        assert stage.code(write(0, batch)) == ErrorCode.INVALID_REQUEST


@pytest.mark.slow
def test_a_share_partition_has_a_limit_of_batches() -> None:
    stage = ready()
    most = [StateBatch(2 * number, 2 * number, 2, 1) for number in range(shares_machine.BATCHES_MAX)]
    assert stage.code(write(0, *most)) == 0
    assert stage.code(write(0, StateBatch(10**6, 10**6, 2, 1))) == ErrorCode.INVALID_REQUEST
    assert stage.code(write(2, StateBatch(10**6, 10**6, 2, 1))) == 0


def test_share_partitions_have_a_limit() -> None:
    stage = ready(ShareSettings(max_share_partitions=2))
    assert stage.code(Initialize(key(partition=1), 1, 0)) == 0
    assert stage.code(Initialize(key(partition=2), 1, 0)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert stage.code(Initialize(key(partition=1), 1, 0)) == 0


def test_after_so_many_updates_comes_a_snapshot() -> None:
    stage = ready(ShareSettings(share_coordinator_snapshot_update_records_per_snapshot=3))
    kinds = []
    for number in range(8):
        stage.ask(write(0, StateBatch(number, number, 2, 1)))
        assert stage.log[-1].key is not None
        kinds.append(stage.log[-1].key[1])
    assert kinds == [1, 1, 1, 0, 1, 1, 1, 0]
    assert stage.ask(FindNeeded()) == 8


def test_a_cold_share_partition_does_not_hold_back_pruning() -> None:
    stage = ready()
    stage.ask(Initialize(key(partition=1), 1, 0))
    for number in range(50):
        stage.ask(write(0, StateBatch(number, number, 2, 1), partition=1))
    assert stage.ask(FindNeeded()) == 0
    stage.wait(3 * INTERVAL_MS)
    assert stage.ask(FindNeeded()) == stage.end - 2
    written = stage.end
    stage.wait(10 * INTERVAL_MS)
    assert stage.end == written, "when all are cold, nothing more is written"


def test_the_state_of_a_deleted_topic_is_deleted() -> None:
    stage = ready()
    stage.image = image_of([])
    stage.ask(BeginRound())
    assert not stage.machine.states
    assert stage.ask(FindNeeded()) == stage.end
