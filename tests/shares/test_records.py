"""Tests the records of `__share_group_state`: written records are read back, and unreadable records raise Damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.errors import Damage
from kpybroker.machine.contract import Stored
from kpybroker.shares.batches import STORED_STATES, StateBatch
from kpybroker.shares.keys import ShareKey, parse_key
from kpybroker.shares.records import (
    check_record,
    kind_of,
    read_key,
    read_snapshot,
    read_update,
    snapshot_record,
    tombstone,
    update_record,
)
from kpybroker.shares.state import ShareState

EPOCH = st.integers(-1, 1 << 30)
KEYS = st.builds(
    ShareKey,
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 1 << 30),
)
BATCHES = st.lists(
    st.builds(
        lambda first, size, state, deliveries: StateBatch(first, first + size, state, deliveries),
        st.integers(0, 1 << 40),
        st.integers(0, 1 << 20),
        st.sampled_from(sorted(STORED_STATES)),
        st.integers(0, 32767),
    ),
    max_size=5,
).map(tuple)
STATES = st.builds(ShareState, EPOCH, EPOCH, EPOCH, EPOCH, EPOCH, BATCHES, EPOCH, EPOCH)


def stored(record: Stored) -> Stored:
    """A record as it comes from the log: only bytes."""
    return Stored(record.key, record.value, record.timestamp_ms, 0)


@given(KEYS, STATES)
def test_a_snapshot_is_read_as_it_was_written(key: ShareKey, state: ShareState) -> None:
    record = stored(snapshot_record(key, state, 5))
    check_record(record)
    assert (kind_of(record), read_key(record), read_snapshot(record)) == (0, key, state)


@given(KEYS, EPOCH, BATCHES)
def test_an_update_is_read_as_it_was_written(key: ShareKey, number: int, batches: tuple[StateBatch, ...]) -> None:
    record = stored(update_record(key, 3, number, number, number, batches, 5))
    check_record(record)
    assert (kind_of(record), read_key(record), read_update(record)) == (1, key, (number, number, number, batches))


@given(KEYS)
def test_a_null_forgets(key: ShareKey) -> None:
    record = stored(tombstone(key, 5))
    check_record(record)
    assert (read_key(record), read_snapshot(record)) == (key, None)


def test_another_kind_of_record_is_passed_over() -> None:
    assert kind_of(Stored(b"\0\7????", b"", 0, 0)) == 7
    check_record(Stored(b"\0\7????", b"", 0, 0))
    check_record(Stored(None, b"", 0, 0))


@pytest.mark.parametrize("value", [b"", b"\0\5abc", b"\0\0abc"])
def test_what_cannot_be_read_is_damage(value: bytes) -> None:
    with pytest.raises(Damage):
        check_record(Stored(tombstone(ShareKey("g", bytes(16), 0), 0).key, value, 0, 0))


def test_a_state_that_nobody_stores_is_damage() -> None:
    wrong = ShareState(0, 0, 0, 0, 0, (StateBatch(1, 2, 1, 1),))
    with pytest.raises(Damage, match="impossible batch"):
        check_record(stored(snapshot_record(ShareKey("g", bytes(16), 0), wrong, 0)))


@given(KEYS)
def test_the_text_of_a_key_is_parsed(key: ShareKey) -> None:
    assert parse_key(key.text) == key


@pytest.mark.parametrize("text", ["", "g", "g:0", "g:short:0", "jLl8YSDjSNGpc1-g2V35Rw:0", ":jLl8YSDjSNGpc1-g2V35Rw:0"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_key(text)
