"""Tests that the matching records of a stored batch are found without reading the others, and keep all their facts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records.batch import HEADER_BYTES, Batch, Record, encode_batch, read_head, read_records
from kpybroker.wire.records.compression import Codec
from kpybroker.wire.records.record_filter import NEEDLES_MAX, parse_filter
from kpybroker.wire.records.record_removal import passed_over
from kpybroker.wire.records.record_selection import PARSED_AT_ONCE, Selection, narrowed, select
from tests.wire.expressions import Told, expressions, records

HEADER_FACTS = ("base_offset", "last_offset", "leader_epoch", "producer_id", "producer_epoch", "base_sequence", "codec")


def stored(found: list[Record], **facts: Any) -> Batch:
    return Batch(memoryview(encode_batch(found, base_offset=100, leader_epoch=3, **facts)))


def selected(batch: Batch, expression: str) -> Selection:
    plain = bytes(batch.view)
    steps = list(select(batch, plain, HEADER_BYTES, len(plain), parse_filter(expression)))
    assert all(step is None for step in steps[:-1])
    last = steps[-1]
    assert last is not None
    return last


@given(expressions, st.lists(records, min_size=1, max_size=8))
def test_the_selected_records_are_those_that_match(told: Told, found: list[Record]) -> None:
    batch = stored(found, producer_id=7, producer_epoch=1, base_sequence=5, transactional=True)
    wanted = [record for record in read_records(batch) if told[1](record)]
    selection = selected(batch, told[0])
    assert selection.records == len(wanted)
    if wanted:
        kept = Batch(memoryview(bytearray(narrowed(batch, selection))))
        assert kept.crc_ok()
        assert list(read_records(kept)) == wanted
        assert kept.max_timestamp == max(record.timestamp for record in wanted)
        assert [getattr(kept, name) for name in HEADER_FACTS] == [getattr(batch, name) for name in HEADER_FACTS]


@given(expressions, records)
def test_a_matching_record_contains_a_needle(told: Told, record: Record) -> None:
    needles = parse_filter(told[0]).needles
    assert needles is None or not told[1](record) or any(each in bytes(stored([record]).view) for each in needles)


@given(st.lists(records, min_size=1, max_size=5))
def test_heads_are_the_records_without_their_values(found: list[Record]) -> None:
    batch = stored(found)
    plain, at = bytes(batch.view), HEADER_BYTES
    for record in read_records(batch):
        head, at = read_head(batch, plain, at)
        assert head == record._replace(value=None if record.value is None else b"")
    assert at == len(plain)


@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ('tag == "a"', 1),
        ('tag in ("a", "b")', 2),
        ('tag == "a" or key == "k"', 2),
        ('tag == "a" and not tombstone', 1),
        ("exists tag", 1),
        ('key prefix "k"', 1),
        ('key prefix ""', None),
        ("exists key", None),
        ("tombstone", None),
        ('tag != "a"', None),
        ('not tag == "a"', None),
        ('tag == "a" or tombstone', None),
        (f"tag in ({', '.join(map(repr, map(str, range(NEEDLES_MAX))))})", NEEDLES_MAX),
        (f"tag in ({', '.join(map(repr, map(str, range(NEEDLES_MAX + 1))))})", None),
        (" or ".join(f'tag == "{at}"' for at in range(NEEDLES_MAX + 1)), None),
    ],
)
def test_the_needles_of_expressions(expression: str, count: int | None) -> None:
    needles = parse_filter(expression).needles
    assert (None if needles is None else len(needles)) == count


def test_a_needle_that_lies_across_two_records_does_not_hide_a_match() -> None:
    tag = (("tag", b"a"),)
    found = [Record(0, 0, None, b"\x06ta"), Record(1, 0, None, b"g\x02a", tag), Record(2, 0, None, b"", tag)]
    assert selected(stored(found), 'tag == "a"').records == 2


def test_a_large_batch_is_searched_in_portions() -> None:
    many = stored([Record(at, 0, b"%d" % at, None) for at in range(3 * PARSED_AT_ONCE + 1)])
    plain = bytes(many.view)
    assert len(list(select(many, plain, HEADER_BYTES, len(plain), parse_filter("tombstone")))) == 4
    last = f'key == "{3 * PARSED_AT_ONCE}"'
    assert selected(many, last).records == 1


def test_records_that_do_not_fit_into_their_batch_are_refused() -> None:
    batch = stored([Record(0, 0, b"k", b"v" * 100)])
    plain = bytes(batch.view)
    for expression in ("tombstone", 'key == "k"'):
        for end in (len(plain) - 1, HEADER_BYTES + 10):
            with pytest.raises(KafkaError) as raised:
                list(select(batch, plain[:end], HEADER_BYTES, end, parse_filter(expression)))
            assert raised.value.code is ErrorCode.INVALID_RECORD


def test_a_batch_that_is_passed_over_keeps_its_offsets_alone() -> None:
    batch = stored([Record(0, 5, b"k", None), Record(1, 9, b"k", None)], producer_id=7, codec=Codec.ZSTD)
    left = Batch(memoryview(bytearray(passed_over(batch))))
    assert left.crc_ok()
    assert (left.base_offset, left.last_offset, left.leader_epoch, left.max_timestamp) == (100, 101, 3, 9)
    assert (left.record_count, left.producer_id, left.attributes, left.size_bytes) == (0, -1, 0, HEADER_BYTES)
