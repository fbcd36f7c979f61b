"""The removal of records from a batch does not change the other records, regardless of the base timestamp."""

from __future__ import annotations

from random import Random

import pytest

from kpybroker.errors import KafkaError
from kpybroker.wire.records.batch import HEADER_BYTES, Batch, Record, encode_batch, read_records
from kpybroker.wire.records.compression import decompress
from kpybroker.wire.records.record_removal import Found, delete_horizon_ms, emptied, put_retimed, scan, thinned


def some_batch(random: Random, codec: int) -> Batch:
    def maybe(limit: int) -> bytes | None:
        return None if random.random() < 0.2 else random.randbytes(random.choice((0, 1, random.randrange(limit))))

    records = [
        Record(
            0,
            random.choice((1000, random.randrange(1 << 42))),
            maybe(200),
            maybe(random.choice((10, 70, 300, 20_000))),
            tuple((f"h{number}", maybe(90)) for number in range(random.choice((0, 0, 3)))),
        )
        for _ in range(random.choice((1, 2, 70, 300)))
    ]
    return Batch(memoryview(encode_batch(records, base_offset=random.randrange(1 << 40), codec=codec, leader_epoch=3)))


def scanned(batch: Batch) -> tuple[bytes, list[Found]]:
    plain = bytes(decompress(batch.codec, batch.view[HEADER_BYTES:], 1 << 30))
    found, at = scan(plain, 0, batch.record_count)
    assert at == len(plain)
    return plain, found


@pytest.mark.parametrize("seed", range(20))
def test_a_scan_finds_the_same_records_as_reading(seed: int) -> None:
    batch = some_batch(Random(seed), seed % 5)
    _, found = scanned(batch)
    seen = [
        (batch.base_offset + offset, batch.base_timestamp + delta, key, has_value)
        for _, _, delta, offset, key, has_value in found
    ]
    assert seen == [(r.offset, r.timestamp, r.key, r.value is not None) for r in read_records(batch)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("horizon_ms", [None, 0, 1 << 41])
def test_the_remaining_records_are_unchanged(seed: int, horizon_ms: int | None) -> None:
    random = Random(seed)
    batch = some_batch(random, seed % 5)
    plain, found = scanned(batch)
    stays = [record for record in found if random.random() < 0.5]
    body = b"".join(plain[record[0] : record[1]] for record in stays)
    if horizon_ms is not None:
        out = bytearray()
        put_retimed(out, memoryview(plain), stays, batch.base_timestamp - horizon_ms)
        body = bytes(out)
    thin = Batch(memoryview(thinned(batch, body, len(stays), 77, horizon_ms)))
    offsets = {batch.base_offset + record[3] for record in stays}
    assert list(read_records(thin)) == [record for record in read_records(batch) if record.offset in offsets]
    assert thin.crc_ok()
    assert (thin.base_offset, thin.last_offset, thin.leader_epoch) == (batch.base_offset, batch.last_offset, 3)
    assert (thin.codec, thin.max_timestamp, delete_horizon_ms(thin)) == (batch.codec, 77, horizon_ms)


def test_an_empty_batch_keeps_its_header() -> None:
    more = {"producer_id": 5, "producer_epoch": 2, "base_sequence": 9, "base_offset": 40, "codec": 4}
    batch = Batch(memoryview(encode_batch([(b"k", b"v")] * 3, timestamp_ms=8, transactional=True, **more)))  # type: ignore[arg-type]
    empty = Batch(memoryview(emptied(batch)))
    assert empty.crc_ok()
    assert (empty.base_offset, empty.last_offset, empty.last_sequence) == (40, 42, 11)
    assert (empty.producer_id, empty.producer_epoch, empty.max_timestamp) == (5, 2, 8)
    assert (empty.is_transactional, empty.codec, empty.record_count) == (True, 0, 0)
    assert list(read_records(empty)) == []


@pytest.mark.parametrize("seed", range(40))
def test_bytes_that_are_not_records_are_refused_or_read(seed: int) -> None:
    random = Random(seed)
    batch = some_batch(random, 0)
    plain = bytearray(batch.view[HEADER_BYTES:])
    if seed % 2:
        del plain[random.randrange(len(plain)) :]
        with pytest.raises(KafkaError):
            scan(bytes(plain), 0, batch.record_count)
        return
    plain[random.randrange(len(plain))] ^= 1 << random.randrange(8)
    try:
        found, at = scan(bytes(plain), 0, batch.record_count)
    except KafkaError:
        return
    assert at <= len(plain)
    assert all(0 <= begin < end <= len(plain) for begin, end, *_ in found)
