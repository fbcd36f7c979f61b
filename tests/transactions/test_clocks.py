"""Tests that a transaction times out by the steady clock, however the wall clock is changed."""

from __future__ import annotations

import pytest

from kpybroker.errors import ErrorCode
from kpybroker.transactions.commands import AddPartitions, Describe, End
from kpybroker.transactions.machine import OVERTAKEN_MS, TransactionSettings
from kpybroker.transactions.transaction import V2, TransactionState
from tests.transactions.stage import Stage

TIMEOUT_MS, EVERY_MS = 5_000, 1_000
SETTINGS = TransactionSettings(transaction_abort_timed_out_transaction_cleanup_interval_ms=EVERY_MS)
jumps = pytest.mark.parametrize("jump_ms", [-600_000, -1, 0, 1, 600_000])


def abandoned(stage: Stage) -> None:
    who = stage.begin(timeout_ms=TIMEOUT_MS)
    assert stage.answer(AddPartitions("t", *who, [("a", 0)], V2)) is None


def state(stage: Stage) -> TransactionState:
    found: TransactionState = stage.answer(Describe("t")).state
    return found


@jumps
@pytest.mark.parametrize("is_set_before", [True, False])
def test_an_abandoned_transaction_is_aborted_after_its_timeout(jump_ms: int, is_set_before: bool) -> None:
    stage = Stage(SETTINGS)
    stage.ahead_ms = jump_ms if is_set_before else 0
    abandoned(stage)
    stage.ahead_ms = 0 if is_set_before else jump_ms
    stage.wait(TIMEOUT_MS)
    assert state(stage) is TransactionState.ONGOING
    stage.wait(EVERY_MS + 1)
    assert state(stage) is TransactionState.PREPARE_ABORT


def test_adding_partitions_does_not_extend_the_timeout() -> None:
    stage = Stage(SETTINGS)
    who = stage.begin(timeout_ms=TIMEOUT_MS)
    for index in range(4):
        assert stage.answer(AddPartitions("t", *who, [("a", index)], V2)) is None
        stage.wait(TIMEOUT_MS // 4)
    stage.wait(EVERY_MS + 1)
    assert state(stage) is TransactionState.PREPARE_ABORT


@jumps
def test_a_new_coordinator_waits_no_longer_than_the_timeout(jump_ms: int) -> None:
    """A new coordinator has only wall-clock times, according to which a transaction may have begun in the future, or
    long ago."""
    stage = Stage(SETTINGS)
    abandoned(stage)
    stage.wait(2_000)
    stage.ahead_ms = jump_ms
    stage.restart()
    if -1 <= jump_ms <= 1:
        stage.wait(TIMEOUT_MS - 2_000 - 1)
        assert state(stage) is TransactionState.ONGOING
        stage.wait(1 + EVERY_MS + 1)
    else:
        stage.wait(TIMEOUT_MS + EVERY_MS + 1 if jump_ms < 0 else EVERY_MS)
    assert state(stage) is TransactionState.PREPARE_ABORT


def test_setting_a_clock_after_the_replay_changes_nothing() -> None:
    stage = Stage(SETTINGS)
    abandoned(stage)
    stage.restart()
    stage.ahead_ms = 600_000
    stage.wait(TIMEOUT_MS)
    assert state(stage) is TransactionState.ONGOING
    stage.wait(EVERY_MS + 1)
    assert state(stage) is TransactionState.PREPARE_ABORT


@jumps
def test_an_early_end_without_records_is_retried_only_briefly(jump_ms: int) -> None:
    stage = Stage(SETTINGS)
    who = stage.begin()
    stage.ahead_ms = jump_ms
    assert stage.answer(End("t", *who, True, V2)) is ErrorCode.CONCURRENT_TRANSACTIONS
    stage.wait(OVERTAKEN_MS)
    assert stage.answer(End("t", *who, True, V2)) is ErrorCode.INVALID_TXN_STATE


def test_the_memory_of_recent_ends_is_short() -> None:
    stage = Stage(SETTINGS)
    for number in range(300):
        stage.begin(f"t{number}")
        stage.now_ms += 1
        assert len(stage.machine.rested) <= OVERTAKEN_MS


def test_clients_get_wall_time() -> None:
    stage = Stage(SETTINGS)
    stage.ahead_ms = 600_000
    abandoned(stage)
    assert stage.answer(Describe("t")).start_ms == stage.now_ms + stage.ahead_ms
