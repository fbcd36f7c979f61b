"""Record batches of format version 2: reads and patches their headers, and encodes and decodes their records.

Layout (big-endian): base_offset int64, length int32 (of the bytes after it), leader_epoch int32, magic int8, crc uint32
(CRC-32C of the bytes after it), attributes int16, last_offset_delta int32, base_timestamp int64, max_timestamp int64,
producer_id int64, producer_epoch int16, base_sequence int32, record_count int32, records. The CRC does not cover the
base offset and the leader epoch, so a broker can assign them in place. Source: KIP-98, "Message format".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.wire.records.checksum import crc32c
from kpybroker.wire.records.compression import Buffer, Codec, compress, decompress

HEADER_BYTES: Final = 61
PREFIX_BYTES: Final = 12
"""The size of base_offset and length, which `length` does not include."""
DECOMPRESSED_LIMIT_BYTES: Final = 128 << 20
"""The default limit on the decompressed size of a batch."""

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

HEADER: Final = Struct(">qiibIhiqqqhii")
PREFIX: Final = Struct(">qi")
WALKED: Final = Struct(">qi11xi")
"""The fields that a walk over batches needs: base offset, length and last offset delta."""
_ASSIGNED: Final = Struct(">qii")
_UINT32: Final = Struct(">I")
MAGIC_AT: Final = 16
_CRC_AT: Final = 17
CRC_FROM: Final = 21
_ATTRIBUTES_AT: Final = 21
_MAX_TIMESTAMP_AT: Final = 35
_PRODUCER_AT: Final = 43
_PRODUCER: Final = Struct(">qh")
_INT16: Final = Struct(">h")
_INT64: Final = Struct(">q")

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """One record. The timestamp is in milliseconds."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Batch:
    """One batch: the fields of its header, and `view`, a writable view of all its bytes."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "crc",
        "last_offset_delta",
        "leader_epoch",
        "magic",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size_bytes",
        "view",
    )

    base_offset: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    def __init__(self, view: memoryview) -> None:
        """`view` contains one batch of at least HEADER_BYTES."""
        (
            self.base_offset,
            length,
            self.leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = HEADER.unpack_from(view)
        self.size_bytes: int = length + PREFIX_BYTES
        self.view = view

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; -1 if the batch has no sequence. Sequences wrap from 2**31 - 1 to 0."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def log_append_time(self) -> bool:
        """Whether max_timestamp is the timestamp of all records, as set by the broker (LogAppendTime)."""
        return bool(self.attributes & LOG_APPEND_TIME)

    def crc_ok(self) -> bool:
        return crc32c(self.view[CRC_FROM:]) == self.crc

    def patch(self, base_offset: int, leader_epoch: int) -> None:
        """Set the base offset and the leader epoch in place. The CRC does not cover them."""
        _ASSIGNED.pack_into(self.view, 0, base_offset, self.size_bytes - PREFIX_BYTES, leader_epoch)
        self.base_offset = base_offset
        self.leader_epoch = leader_epoch

    def stamp(self, timestamp_ms: int, attribute: int = LOG_APPEND_TIME) -> None:
        """Set the maximum timestamp and an attribute bit (0 for none) in place, and update the CRC."""
        self.attributes |= attribute
        self.max_timestamp = timestamp_ms
        _INT16.pack_into(self.view, _ATTRIBUTES_AT, self.attributes)
        _INT64.pack_into(self.view, _MAX_TIMESTAMP_AT, timestamp_ms)
        self.crc = crc32c(self.view[CRC_FROM:])
        _UINT32.pack_into(self.view, _CRC_AT, self.crc)

    def rename_producer(self, producer_id: int, producer_epoch: int) -> None:
        """Set the producer's id and epoch in place, and update the CRC."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        _PRODUCER.pack_into(self.view, _PRODUCER_AT, producer_id, producer_epoch)
        self.crc = crc32c(self.view[CRC_FROM:])
        _UINT32.pack_into(self.view, _CRC_AT, self.crc)


def base_offset_of(view: Buffer) -> int:
    """The base offset of the first batch in the bytes of stored or queued batches."""
    offset: int = _INT64.unpack_from(view, 0)[0]
    return offset


def outline(batches: Buffer) -> tuple[list[tuple[int, int]], list[int]]:
    """The first and last offsets of whole batches, and the positions where they begin, followed by the total size.

    For batches from a log: this checks only that their sizes fit. Raises CORRUPT_MESSAGE.
    """
    spans, positions = [], [0]
    at, total = 0, len(batches)
    while at + HEADER_BYTES <= total:
        base_offset, length, last_delta = WALKED.unpack_from(batches, at)
        if length < HEADER_BYTES - PREFIX_BYTES:
            break
        spans.append((base_offset, base_offset + last_delta))
        at += length + PREFIX_BYTES
        positions.append(at)
    if at != total:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch that begins or ends at byte {at} of {total}")
    return spans, positions


def split(view: Buffer, most: int | None = None) -> list[Batch]:
    """The batches of a records field, or the first `most` of them. They are not copied if `view` is writable.

    This checks sizes and magic, but no CRC. Raises KafkaError: INVALID_RECORD if there is no batch or the magic is old,
    CORRUPT_MESSAGE for wrong lengths.
    """
    whole = view if type(view) is memoryview else memoryview(view)
    if whole.readonly:
        whole = memoryview(bytearray(whole))
    total = len(whole)
    if total >= HEADER_BYTES:
        only = Batch(whole)
        if only.size_bytes == total and only.magic == 2:
            return [only]
    batches: list[Batch] = []
    at = 0
    while at < total and len(batches) != most:
        if total - at < HEADER_BYTES:
            if total - at > 16 and whole[at + 16] < 2:
                raise _old_magic(whole[at + 16])
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{total - at} bytes are too few for a record batch")
        batch = Batch(whole[at:] if at else whole)
        size = batch.size_bytes
        if batch.magic != 2:
            raise _old_magic(batch.magic)
        if not HEADER_BYTES <= size <= total - at:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch of {size} bytes, but only {total - at} are left")
        if at or size != total:
            batch.view = whole[at : at + size]
        batches.append(batch)
        at += size
    if not batches:
        raise KafkaError(ErrorCode.INVALID_RECORD, "no record batch")
    return batches


def whole_batches(records: Buffer | None) -> list[Batch]:
    """The batches of a Fetch response, except for a last one that is cut: Apache Kafka ends a response at its limit of
    bytes. Empty if there is no complete batch. Raises KafkaError, as `split` does."""
    if not records:
        return []
    data = records if type(records) is memoryview else memoryview(records)
    end, total = 0, len(data)
    while total - end >= PREFIX_BYTES:
        size = header_at(data, end)[1]
        if size <= PREFIX_BYTES or size > total - end:
            break
        end += size
    if end == total:
        return split(data)
    return split(data[:end]) if end else []


def _old_magic(magic: int) -> KafkaError:
    if magic in (0, 1):
        return KafkaError(ErrorCode.INVALID_RECORD, f"message format {magic} is not supported, only record batches (2)")
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"invalid magic {magic}")


def read_records(batch: Batch, limit_bytes: int = DECOMPRESSED_LIMIT_BYTES, plain: bytes = b"") -> Iterator[Record]:
    """The records of a batch. They are decompressed to at most `limit_bytes`, unless `plain` has the decompressed
    bytes.

    Raises KafkaError: CORRUPT_MESSAGE, MESSAGE_TOO_LARGE or UNSUPPORTED_COMPRESSION_TYPE from the codec, INVALID_RECORD
    for records in a wrong format, or if their number differs from the one in the header.
    """
    plain = plain or bytes(decompress(batch.codec, batch.view[HEADER_BYTES:], limit_bytes))
    stamp = batch.max_timestamp if batch.log_append_time else None
    base_offset, base_timestamp, total = batch.base_offset, batch.base_timestamp, len(plain)
    new = tuple.__new__  # Record(...) is a function in Python
    at = 0
    try:
        for _ in range(batch.record_count):
            size, at = read_varint(plain, at)
            end = at + size
            if size < 0 or end > total:
                raise _invalid(f"a record of {size} bytes, but only {total - at} are left")
            # here and in _sized, numbers of one byte are decoded in place, because calls would take a quarter of the
            # time
            if (byte := plain[at + 1]) < 0x80:
                timestamp = base_timestamp + ((byte >> 1) ^ -(byte & 1))
                at += 2
            else:
                timestamp_delta, at = read_varint(plain, at + 1)
                timestamp = base_timestamp + timestamp_delta
            if (byte := plain[at]) < 0x80:
                offset = base_offset + ((byte >> 1) ^ -(byte & 1))
                at += 1
            else:
                offset_delta, at = read_varint(plain, at)
                offset = base_offset + offset_delta
            key, at = _sized(plain, at, end)
            value, at = _sized(plain, at, end)
            if plain[at] == 0:
                headers: Headers = ()
                at += 1
            else:
                headers, at = _headers(plain, at, end)
            if at != end:
                raise _invalid("the length of a record does not match its fields")
            yield new(Record, (offset, timestamp if stamp is None else stamp, key, value, headers))
    except IndexError as error:
        raise _invalid("records end early") from error
    if at != total:
        raise _invalid(f"{total - at} bytes after the last record")


def read_head(batch: Batch, plain: bytes, at: int) -> tuple[Record, int]:
    """The record that begins at a position of the decompressed bytes, and the position after it. The bytes of the value
    are not copied: it is empty if there is one. Raises KafkaError: INVALID_RECORD."""
    try:
        size, at = read_varint(plain, at)
        end = at + size
        timestamp_delta, at = read_varint(plain, at + 1)
        offset_delta, at = read_varint(plain, at)
        key, at = _sized(plain, at, end)
        value_bytes, at = read_varint(plain, at)
        headers, at = _headers(plain, at + max(value_bytes, 0), end)
    except IndexError as error:
        raise _invalid("records end early") from error
    if size < 0 or at != end or end > len(plain):
        raise _invalid("the length of a record does not match its fields")
    timestamp = batch.max_timestamp if batch.log_append_time else batch.base_timestamp + timestamp_delta
    return Record(batch.base_offset + offset_delta, timestamp, key, None if value_bytes < 0 else b"", headers), end


def _invalid(text: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, text)


def read_varint(data: Buffer, at: int) -> tuple[int, int]:
    """A zigzag varint of at most 10 bytes, and the position after it. Raises IndexError at the end of the data."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value = byte & 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
        if shift > 63:
            raise _invalid("a varint is too long")


def _sized(data: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    if (byte := data[at]) < 0x80 and not byte & 1:
        size, at = byte >> 1, at + 1
    else:
        size, at = read_varint(data, at)
        if size < 0:
            if size != -1:
                raise _invalid(f"length {size}")
            return None, at
    if at + size > end:
        raise _invalid(f"a field of {size} bytes, but only {end - at} are left in its record")
    return data[at : at + size], at + size


def _headers(data: bytes, at: int, end: int) -> tuple[Headers, int]:
    count, at = read_varint(data, at)
    if not 0 <= count <= (end - at) // 2:
        raise _invalid(f"{count} headers in {end - at} bytes")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        key, at = _sized(data, at, end)
        if key is None:
            raise _invalid("a header has no key")
        value, at = _sized(data, at, end)
        try:
            headers.append((key.decode(), value))
        except UnicodeDecodeError as error:
            raise _invalid("a header key is not UTF-8") from error
    return tuple(headers), at


Keyed = tuple[bytes | None, bytes | None] | tuple[bytes | None, bytes | None, Headers]
"""(key, value) or (key, value, headers) of a record that has the batch's timestamp."""


def encode_batch(
    records: Sequence[Record | Keyed],
    *,
    base_offset: int = 0,
    timestamp_ms: int = -1,
    codec: int = Codec.NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    control: bool = False,
    transactional: bool = False,
) -> bytearray:
    """Encode a batch with consecutive offsets from `base_offset`. A Record has its own timestamp; a tuple gets
    `timestamp_ms`."""
    assert records, "a batch has at least one record"
    first = records[0]
    base_timestamp = first.timestamp if isinstance(first, Record) else timestamp_ms
    max_timestamp = base_timestamp
    body = bytearray()
    for delta, record in enumerate(records):
        if isinstance(record, Record):
            _, timestamp, key, value, headers = record
            if timestamp > max_timestamp:
                max_timestamp = timestamp
            _put_record(body, timestamp - base_timestamp, delta, key, value, headers)
        else:
            if timestamp_ms > max_timestamp:
                max_timestamp = timestamp_ms
            _put_record(
                body, timestamp_ms - base_timestamp, delta, record[0], record[1], record[2] if len(record) > 2 else ()
            )
    packed = compress(codec, body, level) if codec else body
    last = len(records) - 1
    attributes = codec | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    header = (attributes, last, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, last + 1)
    return sealed(base_offset, leader_epoch, header, packed)


def with_body(batch: Batch, codec: int, body: Buffer, max_timestamp: int) -> Batch:
    """A copy of the batch with records in another encoding. `body` has the bytes after the header. The attributes are
    the new codec and the transactional bit of the batch."""
    last, producer = batch.last_offset_delta, (batch.producer_id, batch.producer_epoch, batch.base_sequence)
    attributes = codec | batch.attributes & TRANSACTIONAL
    header = (attributes, last, batch.base_timestamp, max_timestamp, *producer, batch.record_count)
    return Batch(memoryview(sealed(batch.base_offset, batch.leader_epoch, header, body)))


def sealed(base_offset: int, leader_epoch: int, header: tuple[int, ...], body: Buffer) -> bytearray:
    """The bytes of a batch with its CRC. `header` has the fields of the header, beginning with the attributes."""
    out = bytearray(HEADER_BYTES)
    out += body
    HEADER.pack_into(out, 0, base_offset, len(out) - PREFIX_BYTES, leader_epoch, 2, 0, *header)
    with memoryview(out) as whole:
        _UINT32.pack_into(out, _CRC_AT, crc32c(whole[CRC_FROM:]))
    return out


def _put_record(
    out: bytearray, timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: Headers
) -> None:
    body = bytearray(1)
    put_varint(body, timestamp_delta)
    put_varint(body, offset_delta)
    _put_sized(body, key)
    _put_sized(body, value)
    put_varint(body, len(headers))
    for name, content in headers:
        _put_sized(body, name.encode())
        _put_sized(body, content)
    put_varint(out, len(body))
    out += body


def _put_sized(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)
    else:
        put_varint(out, len(data))
        out += data


def put_varint(out: bytearray, value: int) -> None:
    value = value << 1 if value >= 0 else (-value << 1) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def header_at(data: Buffer, at: int) -> tuple[int, int]:
    """The base offset of the batch at a position, and its size in bytes, for scanning stored batches."""
    base_offset, length = PREFIX.unpack_from(data, at)
    return base_offset, length + PREFIX_BYTES
