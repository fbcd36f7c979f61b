"""Tests that a divided batch and the deliveries of its entry have together what the producer sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kpybroker.config import LogSettings
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.scheduled.delivered import delivered_batch, delivered_records, scheduled_record
from kpybroker.scheduled.division import (
    ADDED_BYTES,
    DividedBatch,
    divided,
)
from kpybroker.scheduled.entries import StoredEntry, encode_entry, entry_key, read_entry
from kpybroker.storage.log.slices import at_once
from kpybroker.storage.producers.producers import DELIVERY_PRODUCER
from kpybroker.wire.records.batch import Batch, Record, encode_batch, read_records, split
from kpybroker.wire.records.compression import Codec

NOW_MS = 1_700_000_000_000
SETTINGS = LogSettings(delivery_scheduled=True)
HEADERS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver-at"), st.integers(NOW_MS - 5, NOW_MS + 5).map(lambda ms: b"%d" % ms)),
        st.tuples(st.just("deliver-after"), st.sampled_from([b"0", b"1ms", b"5s", b"2h"])),
        st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)),
        st.tuples(st.just("deliver-another"), st.just(b"x")),
    ),
    max_size=3,
).map(tuple)
BYTES = st.none() | st.binary(max_size=20) | st.just(b"deliver-at")
RECORDS = st.lists(
    st.builds(Record, offset=st.just(0), timestamp=st.integers(0, 2 * NOW_MS), key=BYTES, value=BYTES, headers=HEADERS),
    min_size=1,
    max_size=8,
)


def _due_ms(record: Record) -> int:
    """The due time by the rule of the documentation: the last header with one of the two names counts."""
    spans = {b"0": 0, b"1ms": 1, b"5s": 5000, b"2h": 7_200_000}
    due = 0
    for name, value in record.headers:
        if name == "deliver-at":
            due = int(value or b"")
        elif name == "deliver-after":
            due = NOW_MS + spans[value or b""]
    return due


def _batch(records: list[Record], codec: int = Codec.NONE) -> Batch:
    return split(memoryview(encode_batch(records, codec=codec, producer_id=7, producer_epoch=3, base_sequence=11)))[0]


def _producer(batch: Batch) -> tuple[int, int, int, int]:
    return batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.last_offset_delta


@given(RECORDS, st.sampled_from([Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD, Codec.SNAPPY]))
def test_each_record_is_due_or_delivered_later_as_it_was_sent(records: list[Record], codec: Codec) -> None:
    batch = _batch(records, codec)
    found = at_once(divided(batch, SETTINGS, NOW_MS))
    sent = list(read_records(batch))
    later = [record for record in sent if _due_ms(record) > NOW_MS]
    assert list(read_records(found)) == [record for record in sent if record not in later]
    assert _producer(found) == _producer(batch)
    assert found.crc_ok()
    timed = [record for record in sent if any(name in ("deliver-at", "deliver-after") for name, _ in record.headers)]
    assert isinstance(found, DividedBatch) == bool(timed)
    if isinstance(found, DividedBatch) and later:
        assert found.absent({record.offset for record in read_records(found)}) == found.scheduled()
        entry = read_entry(encode_entry(found.entry(found.scheduled())))
        assert [due for _, _, due in entry.rows] == [_due_ms(record) for record in later]
        told = [100 + delta for _, delta, _ in entry.rows]
        assert told == [100 + record.offset for record in later]
        stored = StoredEntry(entry_key(0, 100), encode_entry(entry))
        assert [stored.told_offset(number) for number in range(len(later))] == told
        again = [scheduled_record(stored, number) for number in range(len(later))]
        assert again == [record._replace(offset=offset) for record, offset in zip(later, told, strict=True)]
        rows = delivered_records(stored, range(len(later)))
        delivery = split(memoryview(delivered_batch(rows, 1, 9)))[0]
        assert _producer(delivery) == (DELIVERY_PRODUCER, 1, 9, len(later) - 1)
        assert delivery.crc_ok()
        for record, was, offset in zip(read_records(delivery), later, told, strict=True):
            added = (("deliver-accepted", b"%d" % NOW_MS), ("deliver-offset", b"%d" % offset))
            assert record[1:] == (was.timestamp, was.key, was.value, was.headers + added)
        assert delivery.max_timestamp == max(record.timestamp for record in later)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (("deliver-at", b"tomorrow"), "deliver-at must be milliseconds"),
        (("deliver-after", None), "deliver-after must be"),
        (("deliver-after", b"366d"), "due more than kpybroker.delivery.max.ahead.ms=31536000000 ahead"),
    ],
)
def test_a_record_that_cannot_be_scheduled_is_named(header: tuple[str, bytes | None], why: str) -> None:
    batch = _batch([Record(0, 0, b"", b""), Record(0, 0, b"", b"", (header,)), Record(0, 0, b"", b"")])
    with pytest.raises(KafkaError, match=why) as refused:
        at_once(divided(batch, SETTINGS, NOW_MS))
    assert refused.value.code == ErrorCode.INVALID_RECORD
    assert [index for index, _ in refused.value.records or ()] == [1]


def test_the_farthest_time_is_accepted() -> None:
    settings = LogSettings(delivery_scheduled=True, delivery_max_ahead_ms=1000)
    for ahead_ms, refused in ((1000, False), (1001, True)):
        batch = _batch([Record(0, 0, b"", b"", (("deliver-at", b"%d" % (NOW_MS + ahead_ms)),))])
        try:
            at_once(divided(batch, settings, NOW_MS))
        except KafkaError:
            assert refused
        else:
            assert not refused


def test_a_record_that_would_be_too_large_for_its_delivery_is_refused() -> None:
    batch = _batch([Record(0, 0, None, b"x" * 1000, (("deliver-after", b"1s"),))])
    accepted = []
    for limit_bytes in range(batch.size_bytes, batch.size_bytes + 120):
        settings = LogSettings(delivery_scheduled=True, max_message_bytes=limit_bytes)
        try:
            found = at_once(divided(batch, settings, NOW_MS))
        except KafkaError:
            continue
        accepted.append(limit_bytes)
        assert isinstance(found, DividedBatch)
        stored = StoredEntry(entry_key(0, (1 << 63) - 1), encode_entry(found.entry(found.parts)))
        rows = delivered_records(stored, [0])
        assert len(delivered_batch(rows, 0, 0)) <= limit_bytes
    assert accepted == list(range(batch.size_bytes + ADDED_BYTES, batch.size_bytes + 120))
    with pytest.raises(KafkaError, match=r"max\.message\.bytes is") as refused:
        at_once(divided(batch, LogSettings(delivery_scheduled=True, max_message_bytes=batch.size_bytes), NOW_MS))
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_batch_that_is_sent_again_after_its_time_has_the_same_scheduled_records() -> None:
    """The records that were not due when the batch was sent for the first time are those that the topic lacks."""
    times = [(), (("deliver-at", b"%d" % (NOW_MS + 5)),), (("deliver-at", b"%d" % (NOW_MS - 5)),)]
    batch = _batch([Record(0, 0, b"", b"", headers) for headers in times])
    first, again = (at_once(divided(batch, SETTINGS, now_ms)) for now_ms in (NOW_MS, NOW_MS + 10))
    assert isinstance(first, DividedBatch)
    assert isinstance(again, DividedBatch)
    assert not again.scheduled()
    assert [part.offset_delta for part in first.scheduled()] == [1]
    assert again.absent({record.offset for record in read_records(first)}) == first.scheduled()
    assert again.absent({record.offset for record in read_records(batch)}) == []
