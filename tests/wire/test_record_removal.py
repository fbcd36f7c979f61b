"""The removal of records from a batch does not change the other records, regardless of the base timestamp."""

from __future__ import annotations

from random import Random

import pytest

from kpybroker.errors import KafkaError
from kpybroker.wire.records.batch import HEADER_BYTES, Batch, Record, encode_batch, put_varint, read_records
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


@pytest.mark.parametrize("seed", range(10))
def test_a_scan_of_a_part_finds_the_records_whose_keys_it_holds(seed: int) -> None:
    """The first records of the whole, wherever the part ends; and it continues at the next one."""
    plain, whole = scanned(some_batch(Random(seed), 0))
    random = Random(seed)
    for length in {0, 1, len(plain), *(random.randrange(len(plain)) for _ in range(200))}:
        found, at = scan(plain[:length], 0, len(whole), len(plain) - length)
        assert found == whole[: len(found)]
        assert at == (whole[len(found)][0] if len(found) < len(whole) else len(plain))
        if len(found) < len(whole):
            begin, end, *_, key, _has_value = whole[len(found)]
            assert length <= end - (0 if key is None else 1), "only a record whose fields the part lacks is left out"
            assert length < begin + 40 + len(key or b"")


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


def record(offset: int, key: bytes = b"k", value: bytes = b"v", size: int | None = None) -> bytes:
    """A record without headers; `size` replaces its right length."""
    body = bytearray(b"\0\0")  # attributes, timestamp delta
    put_varint(body, offset)
    for field in (key, value):
        put_varint(body, len(field))
        body += field
    body += b"\0"
    out = bytearray()
    put_varint(out, len(body) if size is None else size)
    return bytes(out + body)


def test_offsets_of_any_length_are_read() -> None:
    offsets = [0, 63, 64, 8191, 8192, 1 << 20, (1 << 31) - 1]
    found, _ = scan(b"".join(map(record, offsets)), 0, len(offsets))
    assert [one[3] for one in found] == offsets


@pytest.mark.parametrize(
    "plain",
    [
        record(3) + record(3),
        record(3) + record(2),
        record(-1),
        record(0, size=-9) + bytes(20),
        record(0, b"key", size=7) + bytes(20),  # it ends with the key
        record(0, b"key", size=6) + bytes(20),
    ],
    ids=["repeated offset", "descending offset", "negative offset", "negative size", "no value", "cut key"],
)
def test_records_that_contradict_themselves_are_refused(plain: bytes) -> None:
    with pytest.raises(KafkaError):
        scan(plain, 0, 2 if plain.count(b"k") == 2 else 1)
