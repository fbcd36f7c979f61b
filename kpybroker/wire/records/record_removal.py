"""Removes records from stored batches, as compaction does (KIP-98, KIP-534).

A batch from which records were removed keeps its offsets, producer, sequence and leader epoch: the first and the last
offset in its header do not change, and the records keep their deltas. The time after which its tombstones may be
removed (its delete horizon) is in the base timestamp, and bit 6 of the attributes shows this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records.batch import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Batch,
    put_varint,
    read_varint,
    sealed,
)
from kpybroker.wire.records.compression import Buffer, Codec, compress
from kpybroker.wire.records.record_fields import long_varint, varint

if TYPE_CHECKING:
    from mypy_extensions import i64

Found = tuple[int, int, int, int, bytes | None, bool]
"""A record: the positions at which its bytes begin (with its length) and end, its timestamp delta, offset delta and
key, and whether it has a value."""
_COPIED_BYTES: Final = 1 << 20
"""The most bytes that are copied at once. During a copy on one thread, the other threads wait for the interpreter."""
_HALF: Final = 1 << 63


def scan(plain: bytes, at: i64, count: i64, beyond: i64 = 0) -> tuple[list[Found], int]:
    """Read `count` records from position `at` on, with ascending offsets. Returns them and the position after them.
    Keys are slices of `plain`. Raises KafkaError: INVALID_RECORD.

    If `plain` is followed by `beyond` other bytes, only those records are returned whose keys end in `plain`.
    """
    found: list[Found] = []
    previous: i64 = -1
    number: i64 = 0
    try:
        while number < count:
            begin = at
            size: i64 = plain[at]
            at += 1
            if size > 0x7F:
                more: i64 = plain[at]
                at += 1
                size = size & 0x7F | more << 7
                if more > 0x7F:
                    size, at = varint(plain, begin)
            end = at + (size >> 1)
            at += 1
            delta: int = plain[at]
            if delta < 0x80:
                at += 1
            else:
                delta, at = long_varint(plain, at)
            offset: i64 = plain[at]
            at += 1
            if offset > 0x7F:
                more = plain[at]
                at += 1
                offset = offset & 0x7F | more << 7
                if more > 0x7F:
                    offset, at = varint(plain, at - 2)
            if offset & 1 or offset <= previous:
                raise _invalid()
            previous = offset
            length: i64 = plain[at]
            at += 1
            if length > 0x7F:
                length, at = varint(plain, at - 1)
            key = None
            if not length & 1:
                length >>= 1
                key = plain[at : at + length]
                at += length
            mark: i64 = plain[at]
            if at >= end or size & 1:
                raise _invalid()
            found.append((begin, end, (delta >> 1) ^ -(delta & 1), offset >> 1, key, not mark & 1))
            at = end
            number += 1
    except IndexError as error:
        if beyond > 0:
            return found, begin
        raise _invalid() from error
    if at > len(plain) + beyond:
        raise _invalid()
    return found, at


def _invalid() -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, "the records have invalid lengths or offsets")


def _int64(value: int) -> int:
    """Wrap a sum to 64 bits, as Java does, because the records of a batch may contain any timestamps."""
    return (value + _HALF) % (2 * _HALF) - _HALF


def delete_horizon_ms(batch: Batch) -> int | None:
    """The time after which the tombstones of a batch, or its end marker, may be removed; None if it is not set yet."""
    return batch.base_timestamp if batch.attributes & DELETE_HORIZON else None


def put_retimed(out: bytearray, plain: memoryview, records: Sequence[Found], shift_ms: int) -> None:
    """Append the records with `shift_ms` added to their timestamp deltas, as 64-bit integers."""
    for begin, end, delta, _, _, _ in records:
        _, at = read_varint(plain, begin)
        _, after = read_varint(plain, at + 1)
        head = bytearray(plain[at : at + 1])
        put_varint(head, _int64(delta + shift_ms))
        put_varint(out, len(head) + end - after)
        out += head
        for part in range(after, end, _COPIED_BYTES):
            out += plain[part : min(part + _COPIED_BYTES, end)]


def thinned(batch: Batch, body: Buffer, count: int, max_timestamp: int, horizon_ms: int | None) -> bytes:
    """A copy of the batch with the `count` records of `body`, which is compressed with the batch's codec.

    `horizon_ms` is the new delete horizon of the batch, to which the timestamp deltas in `body` are relative.
    """
    attributes, base_timestamp = batch.attributes, batch.base_timestamp
    if horizon_ms is not None:
        attributes, base_timestamp = attributes | DELETE_HORIZON, horizon_ms
    codec = attributes & CODEC_MASK
    packed = compress(codec, body) if codec else body
    return _with(batch, attributes, base_timestamp, max_timestamp, count, packed)


def emptied(batch: Batch) -> bytes:
    """A copy of the batch without records. Its header keeps the producer's data and the offsets."""
    attributes = Codec.NONE | batch.attributes & (TRANSACTIONAL | CONTROL | LOG_APPEND_TIME)
    return _with(batch, attributes, -1, batch.max_timestamp, 0, b"")


def passed_over(batch: Batch) -> bytes:
    """A batch without records for the offsets of this one, without its producer: a consumer goes on after it, and needs
    not know whose batch it was."""
    header = (Codec.NONE, batch.last_offset_delta, -1, batch.max_timestamp, -1, -1, -1, 0)
    return bytes(sealed(batch.base_offset, batch.leader_epoch, header, b""))


def _with(batch: Batch, attributes: int, base_timestamp: int, max_timestamp: int, count: int, body: Buffer) -> bytes:
    producer = batch.producer_id, batch.producer_epoch, batch.base_sequence
    header = (attributes, batch.last_offset_delta, base_timestamp, _int64(max_timestamp), *producer, count)
    return bytes(sealed(batch.base_offset, batch.leader_epoch, header, body))
