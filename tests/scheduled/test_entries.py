"""Tests the records of delivery logs: written records are read back, and unreadable ones raise Damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.errors import Damage
from kpybroker.scheduled.entries import (
    Delivery,
    Entry,
    Stair,
    cancel_key,
    check_record,
    delivered_key,
    delivery_key,
    encode_delivered,
    encode_delivery,
    encode_entry,
    encode_offset,
    entry_key,
    read_cancel_key,
    read_delivered,
    read_delivery,
    read_dues,
    read_entry,
    read_entry_key,
    read_offset,
    read_rows,
)

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
UINT32 = st.integers(0, (1 << 32) - 1)
ROWS = st.lists(st.tuples(UINT32, UINT32, INT64), min_size=1, max_size=5)
ENTRIES = st.builds(Entry, accepted_ms=INT64, base_timestamp=INT64, rows=ROWS, records=st.binary(max_size=50))
DELIVERIES = st.builds(
    Delivery,
    epoch=st.integers(0, 32767),
    sequence=st.integers(0, (1 << 31) - 1),
    positions=st.lists(INT64, max_size=5).map(tuple),
    coverage=st.lists(st.builds(Stair, due_ms=INT64, position=INT64, end=INT64), max_size=3).map(tuple),
)


@given(ENTRIES, DELIVERIES, st.integers(0, 1 << 30), INT64)
def test_what_is_written_is_read(entry: Entry, delivery: Delivery, epoch: int, number: int) -> None:
    assert read_entry(encode_entry(entry)) == entry
    assert read_rows(encode_entry(entry)) == entry.rows
    assert list(read_dues(encode_entry(entry))) == [due_ms for _, _, due_ms in entry.rows]
    assert read_delivery(encode_delivery(delivery)) == delivery
    done = delivery.epoch, delivery.sequence
    assert read_delivered(encode_delivered(*done)) == done
    assert read_entry_key(entry_key(epoch, number)) == (epoch, number)
    assert read_cancel_key(cancel_key(number)) == number
    assert read_offset(encode_offset(number)) == number
    records = (
        (entry_key(epoch, number), encode_entry(entry)),
        (entry_key(epoch, number), None),
        (delivery_key(), encode_delivery(delivery)),
        (delivered_key(), encode_delivered(*done)),
        (cancel_key(number), encode_offset(number)),
        (cancel_key(number), None),
    )
    for key, value in records:
        check_record(key, value)
    assert len({key for key, _ in records}) == 4, "compaction keeps the newest record of each kind"


@given(st.binary(max_size=30) | st.none(), st.binary(max_size=40) | st.none())
def test_unreadable_records_raise_damage(key: bytes | None, value: bytes | None) -> None:
    try:
        check_record(key, value)
    except Damage:
        return
    assert key


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"", None),
        (b"\x00", None),
        (entry_key(0, 0), b""),
        (entry_key(0, 0), encode_entry(Entry(0, 0, [(0, 0, 0)], b""))[:-1]),
        (entry_key(0, 0), b"\x01" + encode_entry(Entry(0, 0, [(0, 0, 0)], b""))[1:]),
        (entry_key(0, 0), encode_entry(Entry(0, 0, [], b""))),
        (delivery_key(), b""),
        (delivery_key(), encode_delivery(Delivery(0, 0, (1,), (Stair(0, 0, 0),)))[:-1]),
        (delivered_key(), b"\x00"),
        (cancel_key(1)[:-1], None),
        (cancel_key(1), b"\x00"),
        (b"\x09", b""),
    ],
)
def test_each_kind_of_damage(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(Damage):
        check_record(key, value)
