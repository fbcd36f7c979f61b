"""Tests the invariants of the transaction machine: a replay produces the live state, an outcome never changes, and a
stale epoch is refused."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode
from kpybroker.machine.contract import Tick
from kpybroker.transactions import records
from kpybroker.transactions.commands import (
    AddPartitions,
    AwaitEndings,
    Complete,
    Describe,
    End,
    InitProducerId,
    ListAll,
    Verify,
)
from kpybroker.transactions.machine import OVERTAKEN_MS, TransactionSettings
from kpybroker.transactions.transaction import LAST_EPOCH, V1, V2, Transaction, TransactionState
from tests.compacted import compacted
from tests.transactions.stage import Stage, hard

pytestmark = pytest.mark.slow

PLACES = [("a", 0), ("a", 1), ("b", 0), ("__consumer_offsets", 3)]
generations = pytest.mark.parametrize("client", [V1, V2])


def random_command(chance: Random, stage: Stage) -> Any:
    """Any command, with ids and epochs that are usually right."""
    name = chance.choice(["t", "t", "u"])
    known = stage.machine.transactions.get(name)
    producer_id = (1 if known is None else known.producer_id) + chance.choice([0, 0, 0, 0, 0, 1])
    epoch = (0 if known is None else known.producer_epoch) + chance.choice([0, 0, 0, 0, 0, -1, 1])
    client = chance.choice([V1, V2])
    places = chance.sample(PLACES, chance.randrange(1, 3))
    match chance.randrange(12):
        case 0 | 1:
            expected = chance.choice([None, None, (producer_id, epoch)])
            return InitProducerId(name, chance.choice([1, 1000, 60_000, 900_001]), expected)
        case 2 | 3 | 4 | 5:
            return AddPartitions(name, producer_id, epoch, places, client)
        case 6:
            return Verify(name, producer_id, epoch, places)
        case 7 | 8 | 9:
            return End(name, producer_id, epoch, chance.random() < 0.5, client)
        case 10:
            return Tick()
        case _:
            return ListAll()


@given(st.integers(0, 1 << 32))
@settings(max_examples=150, deadline=None)
def test_replay_equals_live_and_outcomes_stay(seed: int) -> None:
    chance = Random(seed)
    stage = Stage(TransactionSettings(transactional_id_expiration_ms=50_000), level=chance.choice([1, 2]))
    last: dict[str, Transaction] = {}
    highest: dict[int, int] = {}
    if chance.random() < 0.3:
        exhausted(stage)
    for _ in range(80):
        stage.now_ms += chance.choice([0, 1, 500, 20_000])
        stage.refuses = chance.random() < 0.05
        before = len(stage.log)
        if chance.random() < 0.15:
            stage.settle()
        elif chance.random() < 0.03:
            stage.restart()
        else:
            stage.answer(random_command(chance, stage))
        for record in stage.log[before:]:
            now = record.message
            if not isinstance(now, Transaction):
                transactional_id = records.read_id(record)
                assert transactional_id is not None
                assert not last.pop(transactional_id).is_ending, "what is decided is not forgotten"
                continue
            assert now.producer_epoch >= highest.get(now.producer_id, -1), "an epoch never goes back"
            highest[now.producer_id] = now.producer_epoch
            before_it = last.get(now.transactional_id)
            if before_it is not None and before_it.is_ending:
                assert now.state in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT), (
                    "an end is followed by its completion"
                )
                assert now.commits == before_it.commits, "decided once"
            last[now.transactional_id] = now
        assert hard(stage.replayed()) == hard(stage.machine)
        assert hard(stage.replayed(compacted(stage.log, chance))) == hard(stage.machine)


EPOCHS = st.sampled_from([LAST_EPOCH, LAST_EPOCH + 1, LAST_EPOCH, LAST_EPOCH + 1, 0, -1, -(1 << 15)])
IDS = st.sampled_from([1001, 1001, 1001, 1002, -1, -(1 << 63), (1 << 63) - 1])
TIMEOUTS = st.sampled_from([-(1 << 31), -1, 0, 1, 900_000, (1 << 31) - 1])
NAMES = st.sampled_from(["t", "t", "t", "x" * 32_767])
CLIENTS = st.sampled_from([V1, 1, V2])
WHERE = st.lists(
    st.tuples(st.sampled_from(["a", "t" * 249]), st.sampled_from([-(1 << 31), -1, 0, (1 << 31) - 1])), max_size=3
)
EXTREME = st.one_of(
    st.builds(InitProducerId, NAMES, TIMEOUTS, st.none() | st.tuples(IDS, EPOCHS), st.none()),
    st.builds(AddPartitions, NAMES, IDS, EPOCHS, WHERE, CLIENTS),
    st.builds(Verify, NAMES, IDS, EPOCHS, WHERE),
    st.builds(End, NAMES, IDS, EPOCHS, st.booleans(), CLIENTS, st.none()),
    st.builds(Describe, NAMES),
    st.builds(ListAll, st.just(frozenset()), st.just(frozenset()), IDS),
    st.builds(Tick),
)


@given(
    st.lists(st.tuples(EXTREME, st.sampled_from([0, 1, 20_000, 1 << 40])), min_size=10, max_size=40),
    st.sampled_from([1, 2]),
)
@settings(max_examples=50, deadline=None)
def test_extreme_values_are_refused_or_accepted_without_a_bug(steps: list[tuple[Any, int]], level: int) -> None:
    """`Stage.ask` accepts only a KafkaError as a refusal."""
    stage = Stage(TransactionSettings(transactional_id_expiration_ms=50_000), level=level)
    exhausted(stage)
    for command, then_ms in steps:
        stage.answer(command)
        stage.now_ms += then_ms
        if then_ms == 20_000:
            stage.settle()
    assert hard(stage.replayed()) == hard(stage.machine)


@pytest.mark.parametrize("level", [1, 2])
@generations
def test_the_epoch_of_the_fencing_marker_is_never_assigned(level: int, client: int) -> None:
    """A producer that was fenced at the last epoch may know the epoch above it; the next epoch has another producer
    id."""
    stage = Stage(level=level)
    producer_id, epoch = exhausted(stage)
    assert stage.answer(AddPartitions("t", producer_id, epoch, PLACES, client)) is None
    assert stage.answer(InitProducerId("t", 60_000)) is ErrorCode.CONCURRENT_TRANSACTIONS
    stage.settle()
    used_up = producer_id, epoch + 1
    foreign = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert stage.answer(AddPartitions("t", *used_up, PLACES, client)) is foreign
    assert stage.answer(Verify("t", *used_up, PLACES)) is foreign
    for commit in (True, False):
        assert stage.answer(End("t", *used_up, commit, client)) is foreign
        assert stage.answer(End("t", producer_id, epoch, commit, client)) is foreign
    new = stage.answer(InitProducerId("t", 60_000))
    assert (new[0] != producer_id, new[1]) == (True, 0)


@given(st.integers(0, 1 << 32))
@settings(max_examples=60, deadline=None)
def test_after_any_history_a_producer_can_continue(seed: int) -> None:
    """A producer begins a transaction, writes and commits, while the coordinator changes in between."""
    chance = Random(seed)
    stage = Stage()
    for _ in range(40):
        stage.now_ms += chance.choice([0, 1, 20_000])
        stage.answer(random_command(chance, stage))
    if chance.random() < 0.5:
        stage.restart()
    for _ in range(3):
        stage.settle()
        told = stage.answer(InitProducerId("t", 60_000))
        if told is not ErrorCode.CONCURRENT_TRANSACTIONS:
            break
    producer_id, epoch = told
    assert stage.answer(AddPartitions("t", producer_id, epoch, PLACES[:2], V2)) is None
    assert stage.answer(End("t", producer_id, epoch, True, V2)) == (producer_id, epoch + 1)
    (ending,) = stage.settle()
    assert (ending.commits, ending.partitions, ending.producer_epoch) == (True, frozenset(PLACES[:2]), epoch + 1)
    assert stage.answer(Describe("t")).state is TransactionState.COMPLETE_COMMIT


@generations
def test_a_stale_producer_is_fenced_everywhere(client: int) -> None:
    stage = Stage()
    old = stage.begin()
    assert stage.answer(AddPartitions("t", *old, PLACES[:1], client)) is None
    assert stage.answer(InitProducerId("t", 60_000)) is ErrorCode.CONCURRENT_TRANSACTIONS
    (ending,) = stage.settle()
    assert not ending.commits
    assert ending.producer_epoch > old[1], "the marker shuts it out of the partitions too"
    stage.begin()
    fenced = ErrorCode.PRODUCER_FENCED
    assert stage.answer(AddPartitions("t", *old, PLACES[:1], client)) is fenced
    assert stage.answer(Verify("t", *old, PLACES[:1])) is fenced
    assert stage.answer(End("t", *old, True, client)) is fenced
    assert stage.answer(InitProducerId("t", 60_000, old)) is fenced


def test_the_sender_gets_decided_transactions_from_before_and_after_it_started() -> None:
    stage = Stage()
    stage.ask(AwaitEndings())
    sender = stage.tickets
    who = stage.begin()
    stage.answer(AddPartitions("t", *who, PLACES, V1))
    assert stage.ask(End("t", *who, True, V1))[sender] == []
    (ending,) = stage.answer(AwaitEndings())
    assert ending == stage.answer(Describe("t"))
    assert stage.answer(AwaitEndings()) is None, "told once"
    stage.restart()
    (again,) = stage.answer(AwaitEndings())
    assert hard(stage.machine)["t"] == replace(again, last_epoch=-1)
    stage.ask(Complete(again))
    stage.ask(Complete(again))
    assert stage.answer(Describe("t")).state is TransactionState.COMPLETE_COMMIT


def test_after_a_refusal_of_the_log_nothing_has_changed_and_the_command_can_be_repeated() -> None:
    stage = Stage()
    who = stage.begin()
    stage.answer(AddPartitions("t", *who, PLACES, V1))
    stage.ask(AwaitEndings())
    stage.refuses = True
    assert stage.answer(End("t", *who, True, V1)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    stage.refuses = False
    assert stage.answer(Describe("t")).state is TransactionState.ONGOING
    stage.ask(AwaitEndings())
    assert stage.answer(End("t", *who, False, V1)) == who
    assert [ending.commits for ending in stage.settle()] == [False]


@generations
def test_while_a_transaction_ends_other_commands_must_wait(client: int) -> None:
    stage = Stage()
    who = stage.begin()
    stage.answer(AddPartitions("t", *who, PLACES, client))
    following = stage.answer(End("t", *who, True, client))
    later = ErrorCode.CONCURRENT_TRANSACTIONS
    assert stage.answer(AddPartitions("t", *following, PLACES, client)) is later
    assert stage.answer(Verify("t", *following, PLACES)) is later
    assert stage.answer(End("t", *who, True, client)) is later
    assert stage.answer(InitProducerId("t", 1000)) is later
    stage.settle()
    assert stage.answer(End("t", *who, True, client)) == following, "repeated"
    assert stage.answer(End("t", *who, False, client)) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("level", [1, 2])
def test_a_transaction_that_takes_too_long_is_aborted(level: int) -> None:
    stage = Stage(level=level)
    who = stage.begin("slow", 1000)
    stage.begin("idle", 1000)
    stage.answer(AddPartitions("slow", *who, PLACES, V1))
    stage.wait(900)
    assert stage.answer(Describe("slow")).state is TransactionState.ONGOING
    stage.wait(12_000)
    assert stage.answer(Describe("slow")).state is TransactionState.PREPARE_ABORT
    assert stage.answer(Describe("idle")).state is TransactionState.EMPTY
    (ending,) = stage.settle()
    assert (ending.producer_epoch, ending.partitions) == (who[1] + 1, frozenset(PLACES))
    assert stage.answer(AddPartitions("slow", *who, PLACES, V1)) is ErrorCode.PRODUCER_FENCED


def test_unused_ids_are_removed_in_steps() -> None:
    stage = Stage(TransactionSettings(transactional_id_expiration_ms=10_000))
    for number in range(250):
        stage.begin(f"t{number}")
    who = stage.begin("open", 900_000)
    stage.answer(AddPartitions("open", *who, PLACES, V1))
    stage.wait(3_600_000 - 5_000)
    stage.begin("fresh")
    stage.wait(6_000)
    assert sorted(stage.machine.transactions) == ["fresh", "open"]
    assert hard(stage.replayed()) == hard(stage.machine)


def exhausted(stage: Stage) -> tuple[int, int]:
    """A producer at the last epoch of its id."""
    producer_id, _ = stage.begin()
    known = stage.answer(Describe("t"))
    record = records.record_of(replace(known, producer_epoch=LAST_EPOCH), stage.level)
    stage.log.append(record)
    stage.machine.apply(record)
    return producer_id, LAST_EPOCH


def test_a_new_id_follows_the_last_epoch() -> None:
    stage = Stage()
    old, _ = exhausted(stage)
    new, epoch = stage.begin()
    assert (new != old, epoch) == (True, 0)


def test_a_continuing_producer_gets_a_new_id_after_the_last_epoch() -> None:
    stage = Stage()
    who = exhausted(stage)
    new = stage.answer(InitProducerId("t", 1000, who))
    assert (new[0] != who[0], new[1]) == (True, 0)
    assert stage.answer(InitProducerId("t", 1000, who)) == new, "repeated: the first answer was lost"
    assert stage.answer(InitProducerId("t", 1000, new)) == (new[0], 1)
    assert stage.answer(InitProducerId("t", 1000, who)) is ErrorCode.PRODUCER_FENCED


def test_an_end_that_overtakes_its_records_is_retried() -> None:
    """The Java client may do this within a millisecond of the previous end."""
    stage = Stage()
    who = stage.begin()
    for _ in range(2):  # after InitProducerId, and after another transaction
        assert stage.answer(End("t", *who, True, V2)) is ErrorCode.CONCURRENT_TRANSACTIONS
        stage.answer(AddPartitions("t", *who, PLACES, V2))
        following = stage.answer(End("t", *who, True, V2))
        assert following == (who[0], who[1] + 1)
        stage.settle()
        who = following
    stage.wait(OVERTAKEN_MS)
    assert stage.answer(End("t", *who, True, V2)) is ErrorCode.INVALID_TXN_STATE, "no records will follow"


def test_an_end_at_the_last_epoch_brings_a_new_id() -> None:
    stage = Stage()
    who = exhausted(stage)
    stage.answer(AddPartitions("t", *who, PLACES, V2))
    new = stage.answer(End("t", *who, True, V2))
    assert (new[0] != who[0], new[1]) == (True, 0)
    (ending,) = stage.settle()
    assert (ending.producer_id, ending.producer_epoch) == (who[0], LAST_EPOCH + 1)
    assert stage.answer(End("t", *who, True, V2)) == new
    assert stage.answer(End("t", *who, False, V2)) is ErrorCode.INVALID_TXN_STATE
    assert stage.answer(AddPartitions("t", *new, PLACES, V2)) is None
    assert stage.answer(End("t", *who, True, V2)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_producer_fenced_at_the_last_epoch_returns_with_a_new_id() -> None:
    for expects in (True, False):
        stage = Stage()
        who = exhausted(stage)
        stage.answer(AddPartitions("t", *who, PLACES, V2))
        assert stage.answer(InitProducerId("t", 1000)) is ErrorCode.CONCURRENT_TRANSACTIONS
        stage.settle()
        new = stage.answer(InitProducerId("t", 1000, who if expects else None))
        assert (new[0] != who[0], new[1]) == (True, 0)


def test_the_limit_of_transactional_ids() -> None:
    stage = Stage(TransactionSettings(max_transactional_ids=2))
    stage.begin("a")
    stage.begin("b")
    assert stage.answer(InitProducerId("c", 1000)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    stage.begin("b")


def test_lists_filter() -> None:
    stage = Stage()
    first = stage.begin("first")
    stage.begin("second")
    stage.answer(AddPartitions("first", *first, PLACES, V1))
    stage.now_ms += 5000

    def listed(**facts: Any) -> list[str]:
        return [each.transactional_id for each in stage.answer(ListAll(**facts))]

    assert listed() == ["first", "second"]
    assert listed(states=frozenset({TransactionState.ONGOING})) == ["first"]
    assert listed(producer_ids=frozenset({first[0]})) == ["first"]
    assert listed(running_ms=4999) == ["first", "second"], (
        "a transaction that has not begun counts as running for ever, as in Kafka"
    )
    assert listed(running_ms=5000) == ["second"]
