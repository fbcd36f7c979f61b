"""Encodes and parses end markers, the control batches that end a producer's transaction in a log (KIP-98).

A marker has one record. The key is a version int16 and a type int16 (0 aborts, 1 commits). The value is a version int16
and the epoch int32 of the transaction coordinator that sent it. The batch has the transactional and the control bit,
and no sequence.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from kpybroker.wire.records.batch import Batch, encode_batch, read_records

_KEY = Struct(">hh")
_VALUE = Struct(">hi")
_ABORT, _COMMIT = 0, 1


class Marker(NamedTuple):
    """The contents of an end marker: the producer, the coordinator's epoch, and the outcome."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commits: bool


def encode_marker(marker: Marker, timestamp_ms: int) -> bytearray:
    """Encode the marker as a batch, without an offset."""
    return encode_batch(
        [(_KEY.pack(0, _COMMIT if marker.commits else _ABORT), _VALUE.pack(0, marker.coordinator_epoch))],
        timestamp_ms=timestamp_ms,
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        control=True,
        transactional=True,
    )


def read_marker(batch: Batch) -> Marker | None:
    """The marker in a control batch; None for other control records. Raises KafkaError."""
    for record in read_records(batch):
        key, value = record.key, record.value
        if key is None or value is None or len(key) < _KEY.size or len(value) < _VALUE.size:
            return None
        kind = _KEY.unpack_from(key)[1]
        if kind in (_ABORT, _COMMIT):
            coordinator_epoch = _VALUE.unpack_from(value)[1]
            return Marker(batch.producer_id, batch.producer_epoch, coordinator_epoch, kind == _COMMIT)
    return None
