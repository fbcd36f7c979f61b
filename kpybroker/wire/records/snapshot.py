"""Encodes and decodes a snapshot of `__cluster_metadata`: batches between a header and a footer control record
(KIP-630).

`bootstrap.checkpoint` and `NNNN-NNNN.checkpoint` have the same format. The offsets in a file begin with 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Any

from kpybroker.errors import Damage, KafkaError, MalformedFrame
from kpybroker.wire.codec.codec import build, parse
from kpybroker.wire.records.batch import HEADER_BYTES, Batch, Record, encode_batch, header_at, read_records
from kpybroker.wire.stored import quorum
from kpybroker.wire.stored.metadata import frame_record, unframe_record

LEADER_CHANGE, SNAPSHOT_HEADER, SNAPSHOT_FOOTER, KRAFT_VERSION, KRAFT_VOTERS = 2, 3, 4, 5, 6
"""The types of control records in a metadata log."""
RECORDS_A_BATCH = 500

Row = tuple[bytes | None, bytes | None]
"""Key and value."""

_KEY = Struct(">hh")
_CONTROL_CLASSES = {
    LEADER_CHANGE: quorum.LeaderChangeMessage,
    SNAPSHOT_HEADER: quorum.SnapshotHeaderRecord,
    SNAPSHOT_FOOTER: quorum.SnapshotFooterRecord,
    KRAFT_VERSION: quorum.KRaftVersionRecord,
    KRAFT_VOTERS: quorum.VotersRecord,
}


def control_record(kind: int, message: Any) -> Row:
    """The key and value of a control record. The key contains its version and type."""
    return _KEY.pack(0, kind), build(message, 0)


def read_control(record: Record) -> tuple[int, Any]:
    """The type of a control record, and its message, which is None for an unknown type."""
    return read_row(record.key, record.value)


def read_row(key: bytes | None, value: bytes | None) -> tuple[int, Any]:
    """Like `read_control`, for a key and a value."""
    if key is None or len(key) < _KEY.size or value is None:
        raise Damage("a control record without type or value")
    kind = _KEY.unpack_from(key)[1]
    cls = _CONTROL_CLASSES.get(kind)
    if cls is None:
        return kind, None
    return kind, parse(cls, 0, value)


def encode_snapshot(
    records: Iterable[Any], *, epoch: int, now_ms: int, last_timestamp_ms: int, control: Sequence[Row] = ()
) -> Iterator[bytes]:
    """Yield the batches of the file in order.

    `control` has the control records after the header: kraft.version and the voters. Kafka requires that all records in
    a batch of a metadata log have the same timestamp.
    """
    header = quorum.SnapshotHeaderRecord(last_contained_log_timestamp=last_timestamp_ms)
    offset = 0

    def batch(rows: Sequence[Row], *, is_control: bool) -> bytes:
        nonlocal offset
        data = encode_batch(rows, base_offset=offset, timestamp_ms=now_ms, leader_epoch=epoch, control=is_control)
        offset += len(rows)
        return bytes(data)

    yield batch([control_record(SNAPSHOT_HEADER, header), *control], is_control=True)
    rows: list[Row] = []
    for record in records:
        rows.append((None, frame_record(record)))
        if len(rows) == RECORDS_A_BATCH:
            yield batch(rows, is_control=False)
            rows = []
    if rows:
        yield batch(rows, is_control=False)
    yield batch([control_record(SNAPSHOT_FOOTER, quorum.SnapshotFooterRecord())], is_control=True)


def _record_of(record: Record, name: str) -> Any:
    try:
        return unframe_record(record.value or b"")
    except Damage as damage:
        raise Damage(f"{name} has {damage}") from damage


def decode_snapshot(data: bytes, name: str) -> tuple[list[Any], list[tuple[int, Any]]]:
    """The records, and the control records by type. Raises Damage for a file that is truncated or corrupt."""
    records: list[Any] = []
    control: list[tuple[int, Any]] = []
    view = memoryview(data)
    at = 0
    try:
        while at < len(data):
            size = header_at(view, at)[1] if len(data) - at >= HEADER_BYTES else 0
            if not HEADER_BYTES <= size <= len(data) - at:
                raise Damage(f"{name}: the batch at byte {at} is incomplete")
            batch = Batch(view[at : at + size])
            if batch.magic != 2 or not batch.crc_ok():
                raise Damage(f"{name}: the batch at byte {at} is damaged")
            for record in read_records(batch):
                if batch.is_control:
                    control.append(read_control(record))
                else:
                    records.append(_record_of(record, name))
            at += size
    except (KafkaError, MalformedFrame) as error:
        raise Damage(f"{name}: cannot be read at byte {at}: {error}") from error
    if not control or control[-1][0] != SNAPSHOT_FOOTER:
        raise Damage(f"{name}: the footer is missing")
    return records, control
