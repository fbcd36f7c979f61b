"""Builds the batch of a delivery from the records of entries."""

from __future__ import annotations

from collections.abc import Sequence

from kpybroker.scheduled.division import headers_at, varint_at
from kpybroker.scheduled.entries import StoredEntry
from kpybroker.scheduled.times import ACCEPTED, OFFSET
from kpybroker.storage.producers.producers import DELIVERY_PRODUCER
from kpybroker.wire.records.batch import Batch, Record, put_varint, read_records, sealed

Delivered = tuple[bytes, int, bytes]
"""A record to deliver: its attributes, its timestamp, and the bytes from its key on, with the headers of a delivered
record."""


def delivered_records(entry: StoredEntry, numbers: Sequence[int]) -> list[Delivered]:
    """Some records of an entry, in this order."""
    value, base_timestamp, base_offset = entry.value, entry.base_timestamp, entry.base_offset
    common = _header(ACCEPTED, entry.accepted_ms) + _varint_of(len(OFFSET)) + OFFSET
    added, digits = b"", 0
    found: list[Delivered] = []
    add, join = found.append, b"".join
    for at, delta in entry.places(numbers):
        size, at = varint_at(value, at)
        end = at + size
        attributes = value[at : at + 1]
        shift, at = varint_at(value, at + 1)
        _, begin = varint_at(value, at)
        at = headers_at(value, begin)
        told = b"%d" % (base_offset + delta)
        if len(told) != digits:
            digits = len(told)
            added = common + _varint_of(digits)
        count, rest_at = varint_at(value, at)
        content = join((value[begin:at], _varint_of(count + 2), value[rest_at:end], added, told))
        add((attributes, base_timestamp + shift, content))
    return found


def delivered_batch(records: Sequence[Delivered], epoch: int, sequence: int) -> bytearray:
    """The batch that delivers these records, at least one, in this order."""
    first_timestamp = max_timestamp = records[0][1]
    parts: list[bytes] = []
    put = parts.append
    for delta, (attributes, timestamp, content) in enumerate(records):
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        head = attributes + _varint_of(timestamp - first_timestamp) + _varint_of(delta)
        put(_varint_of(len(head) + len(content)))
        put(head)
        put(content)
    last = len(records) - 1
    header = (0, last, first_timestamp, max_timestamp, DELIVERY_PRODUCER, epoch, sequence, last + 1)
    return sealed(0, -1, header, b"".join(parts))


def scheduled_record(entry: StoredEntry, number: int) -> Record:
    """A record of an entry as its producer sent it, with the offset that the producer was told. Raises KafkaError."""
    header = (0, 0, entry.base_timestamp, entry.base_timestamp, -1, -1, -1, 1)
    batch = Batch(memoryview(sealed(0, -1, header, entry.record(number))))
    return next(read_records(batch))._replace(offset=entry.told_offset(number))


def _header(name: bytes, value: int) -> bytes:
    text = b"%d" % value
    return _varint_of(len(name)) + name + _varint_of(len(text)) + text


def _encoded_varint(value: int) -> bytes:
    out = bytearray()
    put_varint(out, value)
    return bytes(out)


_SMALL = tuple(_encoded_varint(value) for value in range(2048))


def _varint_of(value: int) -> bytes:
    return _SMALL[value] if 0 <= value < len(_SMALL) else _encoded_varint(value)
