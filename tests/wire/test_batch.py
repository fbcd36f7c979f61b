"""Batches: encoded records are read back, and invalid bytes raise only KafkaError."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records.batch import HEADER_BYTES, Record, encode_batch, outline, read_records, split, whole_batches
from kpybroker.wire.records.compression import Codec

blobs = st.none() | st.binary(max_size=80)
headers = st.lists(st.tuples(st.text(max_size=10), blobs), max_size=3).map(tuple)
records = st.lists(
    st.builds(Record, st.just(0), st.integers(0, 1 << 45), blobs, blobs, headers),
    min_size=1,
    max_size=20,
)
some = settings(max_examples=25, deadline=None)

FROM_KAFKA = bytes.fromhex(
    "00000000000000000000003900000000024ef08eef000000000000000001a1fc82c1b3000001a1fc"
    "82c1b30000000000000000000000000000000000010e00000001027600"
)
"""A batch with one record with the value `v` and no key, which confluent-kafka sent to Apache Kafka 4.3.1, and which
Kafka stored."""


@given(records, st.sampled_from(Codec), st.integers(0, 1 << 60))
@some
def test_encoded_records_are_read_back(of: list[Record], codec: Codec, base_offset: int) -> None:
    content = encode_batch(
        of, base_offset=base_offset, codec=codec, producer_id=9, producer_epoch=3, base_sequence=5, leader_epoch=2
    )
    (batch,) = split(content)
    assert batch.crc_ok()
    assert (batch.codec, batch.leader_epoch, batch.producer_id, batch.producer_epoch) == (codec, 2, 9, 3)
    assert (batch.base_offset, batch.last_offset) == (base_offset, base_offset + len(of) - 1)
    assert batch.last_sequence == 5 + len(of) - 1
    assert batch.max_timestamp == max(record.timestamp for record in of)
    assert list(read_records(batch)) == [record._replace(offset=base_offset + at) for at, record in enumerate(of)]


@given(records, st.integers(0, 1 << 60), st.integers(0, 1 << 30))
@some
def test_assigning_offsets_leaves_the_checksum(of: list[Record], base_offset: int, epoch: int) -> None:
    (batch,) = split(encode_batch(of))
    batch.patch(base_offset, epoch)
    (again,) = split(bytes(batch.view))
    assert again.crc_ok()
    assert (again.base_offset, again.leader_epoch, again.size_bytes) == (base_offset, epoch, batch.size_bytes)


def test_a_last_batch_that_is_cut_is_left_out() -> None:
    """Apache Kafka ends a Fetch response at its limit of bytes, wherever that is."""
    sizes = [len(encode_batch([(b"k", b"v" * size)])) for size in (1, 20, 300)]
    content = b"".join(encode_batch([(b"k", b"v" * size)], base_offset=at) for at, size in enumerate((1, 20, 300)))
    for end in range(len(content) + 1):
        found = whole_batches(content[:end])
        assert [batch.base_offset for batch in found] == [at for at in range(3) if sum(sizes[: at + 1]) <= end]
        assert all(batch.crc_ok() for batch in found)
    assert whole_batches(None) == []


@pytest.mark.slow
@given(st.lists(records, min_size=1, max_size=4))
@some
def test_batches_are_split_where_they_were_joined(of: list[list[Record]]) -> None:
    parts = [encode_batch(one) for one in of]
    assert [bytes(batch.view) for batch in split(b"".join(parts))] == parts


@given(st.lists(records, min_size=1, max_size=4), st.data())
@some
def test_an_outline_equals_the_headers_of_the_batches(of: list[list[Record]], data: Any) -> None:
    parts = [encode_batch(one) for one in of]
    whole = b"".join(parts)
    spans, positions = outline(whole)
    assert spans == [(batch.base_offset, batch.last_offset) for batch in split(whole)]
    assert [whole[begin:end] for begin, end in pairwise(positions)] == parts
    cut = data.draw(st.integers(1, len(whole) - 1))
    if cut not in positions:
        with pytest.raises(KafkaError, match=f"of {cut}$"):
            outline(whole[:cut])


def test_an_outline_ends_at_an_impossible_length() -> None:
    assert outline(b"") == ([], [0])
    with pytest.raises(KafkaError, match="at byte 0 of 100"):
        outline(bytes(100))


@given(records, st.sampled_from(Codec), st.data())
@some
def test_mutated_bytes_are_read_or_refused(of: list[Record], codec: Codec, data: Any) -> None:
    content = encode_batch(of, codec=codec)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))]
    try:
        for batch in split(content):
            for _ in read_records(batch, 1 << 16):
                pass
    except KafkaError:
        pass


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (b"x" * 60, ErrorCode.CORRUPT_MESSAGE),
        (FROM_KAFKA[:-1], ErrorCode.CORRUPT_MESSAGE),
        (FROM_KAFKA + b"x", ErrorCode.CORRUPT_MESSAGE),
        (FROM_KAFKA[:16] + b"\x01" + FROM_KAFKA[17:], ErrorCode.INVALID_RECORD),
        (FROM_KAFKA[:16] + b"\x00" + FROM_KAFKA[17:40], ErrorCode.INVALID_RECORD),
        (FROM_KAFKA[:16] + b"\x03" + FROM_KAFKA[17:], ErrorCode.CORRUPT_MESSAGE),
        (FROM_KAFKA[:8] + b"\xff\xff\xff\xff" + FROM_KAFKA[12:], ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_what_is_not_a_batch_is_refused(content: bytes, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refusal:
        split(content)
    assert refusal.value.code == code


def test_a_stored_batch_is_read() -> None:
    (batch,) = split(FROM_KAFKA)
    assert batch.crc_ok()
    assert list(read_records(batch)) == [Record(0, 1795237790131, None, b"v")]
    assert (
        encode_batch(list(read_records(batch)), producer_id=0, producer_epoch=0, base_sequence=0, leader_epoch=0)
        == FROM_KAFKA
    )


def test_a_stamped_batch_has_the_brokers_time() -> None:
    (batch,) = split(encode_batch([Record(0, 5, b"k", b"v")] * 2))
    batch.stamp(77)
    (again,) = split(bytes(batch.view))
    assert again.crc_ok()
    assert [record.timestamp for record in read_records(again)] == [77, 77]


def test_tuples_take_the_batchs_time() -> None:
    (batch,) = split(encode_batch([(b"k", None), (None, b"v", (("h", b"1"),))], timestamp_ms=7))
    assert list(read_records(batch)) == [Record(0, 7, b"k", None), Record(1, 7, None, b"v", (("h", b"1"),))]


def test_a_record_count_above_the_number_of_records() -> None:
    (batch,) = split(encode_batch([(b"k", b"v")], timestamp_ms=7))
    batch.record_count = 2**31 - 1
    with pytest.raises(KafkaError, match="records end early"):
        list(read_records(batch))
    batch.record_count = 0
    with pytest.raises(KafkaError, match=f"{batch.size_bytes - HEADER_BYTES} bytes after"):
        list(read_records(batch))
