"""The records of a delivery log, `__scheduled.<topic>`. The log is compacted, so each kind has its own keys.

- Entry: the scheduled records of one batch. Key: 0 int8, leader epoch int32, base offset int64: the place of the batch
  in the topic's partition. Value: version int8 = 0, accepted_ms int64, base timestamp int64, count int32, `count` rows
  (position in the records uint32, offset delta uint32, due_ms int64), and the records as the producer encoded them.
  The timestamp is the latest due time.
- The end of an entry, after all its records were delivered: its key, and no value. Header `entry`: the offset of the
  entry in this log, int64.
- Delivery: the records that are being delivered. Key: 1 int8. Value: version int8 = 0, producer epoch int16, sequence
  int32, count int32, `count` positions int64, and the coverage: pairs of a position in time (due_ms int64, position
  int64) and the end of the log (int64) up to which it holds.
- Delivered: key 2 int8, value: the producer epoch int16 and sequence int32 of the last delivery that was appended.
- Cancel: key 3 int8, position int64. Value: due_ms int64. With no value, the cancelled record is no longer pending.

A position is the offset of an entry in this log, shifted left by INDEX_BITS, plus the index of the record in the entry.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from kpybroker.errors import Damage

ENTRY, DELIVERY, DELIVERED, CANCEL = 0, 1, 2, 3
INDEX_BITS = 20
RECORDS_MAX = 100_000
"""The most scheduled records of one batch, so that no step of their work takes long."""
ENTRY_HEADER = "entry"
_ENTRY_KEY = Struct(">biq")
_CANCEL_KEY = Struct(">bq")
_ENTRY_HEAD = Struct(">bqqi")
ROW = Struct(">IIq")
_DELIVERY_HEAD = Struct(">bhii")
_POSITION = Struct(">q")
_STAIR = Struct(">qqq")
_DONE = Struct(">hi")


class Entry(NamedTuple):
    """The scheduled records of one batch. `rows` has the position, offset delta and due time of each."""

    accepted_ms: int
    base_timestamp: int
    rows: list[tuple[int, int, int]]
    records: bytes


class StoredEntry:
    """An entry in the form in which it is stored, of which single records can be read."""

    __slots__ = ("_records_at", "accepted_ms", "base_offset", "base_timestamp", "key", "value")

    def __init__(self, key: bytes, value: bytes) -> None:
        """Raises Damage."""
        _check_entry(value)
        self.key = key
        _, self.base_offset = read_entry_key(key)
        _, self.accepted_ms, self.base_timestamp, count = _ENTRY_HEAD.unpack_from(value)
        self.value = value
        self._records_at = _ENTRY_HEAD.size + count * ROW.size

    @property
    def size_bytes(self) -> int:
        return len(self.value)

    def places(self, numbers: Iterable[int]) -> list[tuple[int, int]]:
        """The positions of records in `value`, and the deltas of the offsets that their producer was told."""
        records_at, unpack, size, rows_at = self._records_at, ROW.unpack_from, ROW.size, _ENTRY_HEAD.size
        rows = [unpack(self.value, rows_at + number * size) for number in numbers]
        return [(records_at + begin, delta) for begin, delta, _ in rows]

    def told_offset(self, number: int) -> int:
        """The offset that the producer of a record was told."""
        delta: int = ROW.unpack_from(self.value, _ENTRY_HEAD.size + number * ROW.size)[1]
        return self.base_offset + delta

    def record(self, number: int) -> bytes:
        """A record as its producer encoded it."""
        at = _ENTRY_HEAD.size + number * ROW.size
        begin = self._records_at + ROW.unpack_from(self.value, at)[0]
        end = len(self.value)
        if at + ROW.size < self._records_at:
            end = self._records_at + ROW.unpack_from(self.value, at + ROW.size)[0]
        return self.value[begin:end]


class Stair(NamedTuple):
    """All records up to a position in time, in entries below `end`, have been taken for delivery."""

    due_ms: int
    position: int
    end: int


class Delivery(NamedTuple):
    """Records that are appended to the topic's partition as one batch, with this producer epoch and sequence."""

    epoch: int
    sequence: int
    positions: tuple[int, ...]
    coverage: tuple[Stair, ...]


def entry_key(leader_epoch: int, base_offset: int) -> bytes:
    return _ENTRY_KEY.pack(ENTRY, leader_epoch, base_offset)


def read_entry_key(key: bytes) -> tuple[int, int]:
    """The leader epoch and base offset of the batch. Raises Damage."""
    if len(key) != _ENTRY_KEY.size:
        raise Damage(f"the key of an entry has {len(key)} bytes")
    _, leader_epoch, base_offset = _ENTRY_KEY.unpack(key)
    return leader_epoch, base_offset


def encode_entry(entry: Entry) -> bytes:
    head = _ENTRY_HEAD.pack(0, entry.accepted_ms, entry.base_timestamp, len(entry.rows))
    return b"".join((head, *(ROW.pack(*row) for row in entry.rows), entry.records))


def _check_entry(value: bytes) -> None:
    """Raise Damage for a value that is no entry."""
    if len(value) < _ENTRY_HEAD.size:
        raise Damage(f"an entry of {len(value)} bytes")
    version, _, _, count = _ENTRY_HEAD.unpack_from(value)
    if version != 0 or not 0 < count <= RECORDS_MAX or _ENTRY_HEAD.size + count * ROW.size > len(value):
        raise Damage(f"an entry of version {version} with {count} records in {len(value)} bytes")


def read_rows(value: bytes) -> list[tuple[int, int, int]]:
    """The rows of an entry. Raises Damage."""
    _check_entry(value)
    count = _ENTRY_HEAD.unpack_from(value)[3]
    return list(ROW.iter_unpack(value[_ENTRY_HEAD.size : _ENTRY_HEAD.size + count * ROW.size]))


def read_dues(value: bytes) -> array[int]:
    """The due times of an entry's records. Raises Damage."""
    _check_entry(value)
    count = _ENTRY_HEAD.unpack_from(value)[3]
    halves = array("q", value[_ENTRY_HEAD.size : _ENTRY_HEAD.size + count * ROW.size])
    dues_ms = halves[1::2]
    if sys.byteorder == "little":
        dues_ms.byteswap()
    return dues_ms


def read_entry(value: bytes) -> Entry:
    """Raises Damage."""
    rows = read_rows(value)
    _, accepted_ms, base_timestamp, count = _ENTRY_HEAD.unpack_from(value)
    return Entry(accepted_ms, base_timestamp, rows, value[_ENTRY_HEAD.size + count * ROW.size :])


def delivery_key() -> bytes:
    return bytes([DELIVERY])


def encode_delivery(delivery: Delivery) -> bytes:
    count = len(delivery.positions)
    parts = [_DELIVERY_HEAD.pack(0, delivery.epoch, delivery.sequence, count)]
    parts.append(struct.pack(f">{count}q", *delivery.positions))
    parts += [_STAIR.pack(*stair) for stair in delivery.coverage]
    return b"".join(parts)


def read_delivery(value: bytes) -> Delivery:
    """Raises Damage."""
    try:
        version, epoch, sequence, count = _DELIVERY_HEAD.unpack_from(value)
        end = _DELIVERY_HEAD.size + count * _POSITION.size
        if version != 0 or count < 0 or end > len(value):
            raise Damage(f"a delivery of version {version} with {count} records in {len(value)} bytes")
        positions = struct.unpack_from(f">{count}q", value, _DELIVERY_HEAD.size)
        return Delivery(epoch, sequence, positions, tuple(map(Stair._make, _STAIR.iter_unpack(value[end:]))))
    except struct.error as error:
        raise Damage(f"a delivery of {len(value)} bytes") from error


def delivered_key() -> bytes:
    return bytes([DELIVERED])


def encode_delivered(epoch: int, sequence: int) -> bytes:
    return _DONE.pack(epoch, sequence)


def read_delivered(value: bytes) -> tuple[int, int]:
    """The producer epoch and sequence. Raises Damage."""
    if len(value) != _DONE.size:
        raise Damage(f"the end of a delivery of {len(value)} bytes")
    epoch, sequence = _DONE.unpack(value)
    return epoch, sequence


def cancel_key(position: int) -> bytes:
    return _CANCEL_KEY.pack(CANCEL, position)


def read_cancel_key(key: bytes) -> int:
    """The position of the cancelled record. Raises Damage."""
    if len(key) != _CANCEL_KEY.size:
        raise Damage(f"the key of a cancel has {len(key)} bytes")
    position: int = _CANCEL_KEY.unpack(key)[1]
    return position


def encode_offset(offset: int) -> bytes:
    """An int64, as in the header of the end of an entry and in the value of a cancel."""
    return _POSITION.pack(offset)


def read_offset(value: bytes) -> int:
    """Raises Damage."""
    if len(value) != _POSITION.size:
        raise Damage(f"an int64 of {len(value)} bytes")
    offset: int = _POSITION.unpack(value)[0]
    return offset


def check_record(key: bytes | None, value: bytes | None) -> None:
    """Raise Damage if a delivery log cannot be read with this record."""
    if not key:
        raise Damage("a record without a key")
    if key[0] == ENTRY:
        read_entry_key(key)
        if value is not None:
            _check_entry(value)
    elif key[0] == DELIVERY and value is not None:
        read_delivery(value)
    elif key[0] == DELIVERED and value is not None:
        read_delivered(value)
    elif key[0] == CANCEL:
        read_cancel_key(key)
        if value is not None:
            read_offset(value)
    elif key[0] not in (DELIVERY, DELIVERED):
        raise Damage(f"a record of the unknown kind {key[0]}")
