"""Tests of the invariants of transactions: each violation is reported as one sentence, and a valid history has none."""

from __future__ import annotations

import pytest

from kpybroker.sim.checks.atomicity import check_transactions, check_transformed
from kpybroker.sim.clients.transforming import input_of, output_of
from kpybroker.sim.world.history import HighestOffsets, History, Sent, SentTransaction
from kpybroker.wire.records.aborted_filter import AbortedFilter
from kpybroker.wire.records.batch import Batch, encode_batch
from kpybroker.wire.rpc.fetch import AbortedTransaction

ONE, OTHER = ("t", 0), ("t", 1)


def history() -> History:
    return History(lambda: 0.0)


def transaction(*, asked: bool, committed: bool | None) -> SentTransaction:
    """Two records in two partitions."""
    records = [Sent(b"a", ONE, -1, True), Sent(b"b", OTHER, -1, True)]
    return SentTransaction("p", records, commit_asked=asked, is_committed=committed)


@pytest.mark.parametrize(
    ("asked", "committed", "shown", "sentence"),
    [
        (True, True, (b"a", b"b"), None),
        (True, None, (b"a", b"b"), None),
        (True, None, (), None),
        (False, False, (), None),
        (False, None, (), None),
        (True, True, (b"a",), "was committed"),
        (True, True, (), "was committed"),
        (True, None, (b"b",), "is not"),
        (True, False, (b"a", b"b"), "was aborted"),
        (False, None, (b"a", b"b"), "never committed"),
    ],
)
def test_a_transaction_is_atomic(
    asked: bool, committed: bool | None, shown: tuple[bytes, ...], sentence: str | None
) -> None:
    told = history()
    told.transactions.append(transaction(asked=asked, committed=committed))
    check_transactions(
        told,
        {place: [(7, value)] if value in shown else [] for place, value in ((ONE, b"a"), (OTHER, b"b"))},
    )
    assert [sentence in breach for breach in told.breaches] == ([True] if sentence else [])  # type: ignore[operator]


def test_records_read_as_committed_stay() -> None:
    told = history()
    told.ledger(ONE).seen_committed[7] = b"a"
    check_transactions(told, {ONE: [(7, b"a")]})
    assert told.breaches == []
    check_transactions(told, {ONE: [(8, b"a")]})
    assert "was read as committed at 7" in told.breaches[0]


@pytest.mark.parametrize(
    ("taken", "outputs", "sentence"),
    [
        ((b"x", b"y"), (b"x", b"y"), None),
        ((), (), None),
        ((b"x", b"y"), (b"x",), "wrote it 0 times"),
        ((b"x", b"y"), (b"x", b"y", b"y"), "wrote it 2 times"),
        ((b"x",), (b"x", b"y"), "did not commit its offset"),
    ],
)
def test_each_input_has_one_output(taken: tuple[bytes, ...], outputs: tuple[bytes, ...], sentence: str | None) -> None:
    told = history()
    written = [output_of("g", value, f"c.{at}") for at, value in enumerate(outputs)]
    check_transformed(told, "g", list(taken), [*written, output_of("other", b"z", "c.1"), b"p0/3"])
    assert [sentence in breach for breach in told.breaches] == ([True] if sentence else [])  # type: ignore[operator]


def test_an_output_names_its_input() -> None:
    assert input_of("g", output_of("g", b"p0/3>1#", "x0.4")) == b"p0/3>1#"
    assert input_of("g", b"p0/3") is None


def batch(producer_id: int, offset: int, *, control: bool = False) -> Batch:
    made = encode_batch(
        [(None, b"x")],
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=-1 if control else 0,
        control=control,
        transactional=True,
    )
    return Batch(memoryview(made))


def test_read_committed_consumers_skip_aborted_transactions_before_their_markers() -> None:
    running = AbortedFilter([AbortedTransaction(producer_id=2, first_offset=11), AbortedTransaction(producer_id=1)])
    log = [batch(1, 10), batch(2, 11), batch(3, 12), batch(1, 13, control=True), batch(1, 14), batch(2, 15)]
    assert [running.lets_through(one) for one in log] == [False, False, True, False, True, False]


def test_later_leaders_have_what_earlier_ones_have_shown() -> None:
    reach = HighestOffsets()
    reach.reached(3, 10)
    reach.reached(5, 8)
    assert [reach.least(epoch) for epoch in (2, 3, 4, 5)] == [0, 10, 10, 10]
    assert (reach.of(5), reach.of(4)) == (8, 0)


def test_an_epoch_is_assigned_once() -> None:
    told = history()
    told.incarnation(7, 0)
    told.incarnation(7, 1)
    told.incarnation(8, 1)
    assert told.breaches == []
    told.incarnation(7, 1)
    assert "given twice" in told.breaches[0]
