"""Tests of the records of `__transaction_state`: written records are parsed to the same values, and invalid records are
damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.errors import Damage
from kpybroker.machine.contract import Stored
from kpybroker.transactions.machine import TransactionMachine, TransactionSettings
from kpybroker.transactions.records import check_record, read, read_id, record_of, tombstone
from kpybroker.transactions.transaction import Transaction, TransactionState

SMALL = st.integers(-1, 1 << 40)
PLACES = st.frozensets(st.tuples(st.sampled_from(["a", "b", "__consumer_offsets"]), st.integers(0, 9)), max_size=9)
TRANSACTIONS = st.builds(
    Transaction,
    transactional_id=st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
    producer_id=st.integers(0, 1 << 40),
    producer_epoch=st.integers(0, 32767),
    timeout_ms=st.integers(1, 1 << 30),
    state=st.sampled_from(sorted(set(TransactionState) - {TransactionState.EMPTY})),
    partitions=PLACES,
    start_ms=SMALL,
    last_update_ms=SMALL,
    previous_producer_id=SMALL,
    next_producer_id=SMALL,
    client_version=st.sampled_from([0, 2]),
)


def stored(record: Stored) -> Stored:
    """A record in the form in which it is read from the log, as bytes."""
    return Stored(record.key, record.value, record.timestamp_ms, 0)


@given(TRANSACTIONS)
def test_written_records_are_read_back(transaction: Transaction) -> None:
    record = stored(record_of(transaction, 2))
    assert read_id(record) == transaction.transactional_id
    assert read(transaction.transactional_id, record) == transaction


def test_the_old_version_lacks_later_fields() -> None:
    transaction = Transaction("t", 7, 3, 1000, TransactionState.ONGOING, frozenset({("a", 1)}), 5, 6)
    record = stored(record_of(transaction, 0))
    assert record.value is not None
    assert record.value[:2] == b"\0\0"
    assert read("t", record) == transaction


def test_a_null_value_deletes() -> None:
    record = stored(tombstone("t", 5))
    assert (read_id(record), read("t", record)) == ("t", None)


def test_another_kind_of_record_is_ignored() -> None:
    assert read_id(Stored(b"\0\7????", b"", 0, 0)) is None
    assert read_id(Stored(None, b"", 0, 0)) is None


@pytest.mark.parametrize("value", [b"", b"\0\5abc", b"\0\1abc"])
def test_an_unreadable_record_is_damage(value: bytes) -> None:
    with pytest.raises(Damage):
        read("t", Stored(b"", value, 0, 0))


def test_an_unknown_state_is_damage() -> None:
    value = bytearray(record_of(Transaction("t", 7, 3, 1000, TransactionState.ONGOING), 0).value or b"")
    value[2 + 8 + 2 + 4] = 99
    with pytest.raises(Damage, match="unknown state 99"):
        read("t", Stored(b"", bytes(value), 0, 0))


@pytest.mark.slow
@given(TRANSACTIONS, st.data())
def test_records_that_pass_the_check_can_be_read(transaction: Transaction, data: st.DataObject) -> None:
    whole = record_of(transaction, 2)
    check_record(Stored(whole.key, whole.value))
    check_record(Stored(whole.key, None))
    key, value = bytearray(whole.key or b""), bytearray(whole.value or b"")
    for changed in (key, value):
        for at in data.draw(st.lists(st.integers(0, len(changed) - 1), max_size=2)):
            changed[at] = data.draw(st.integers(0, 255))
        del changed[data.draw(st.just(len(changed)) | st.integers(0, len(changed))) :]
    try:
        check_record(Stored(bytes(key), bytes(value)))
    except Damage:
        return
    TransactionMachine(TransactionSettings(), lambda: 2).apply(Stored(bytes(key), bytes(value)))


@pytest.mark.parametrize("value", [b"\xff\xffjunk", b"\0\x4d" + bytes(40)])
def test_garbage_does_not_pass_the_check(value: bytes) -> None:
    with pytest.raises(Damage):
        check_record(Stored(b"\0\0\0\1x", value))
    with pytest.raises(Damage):
        check_record(Stored(b"\0", b""))
