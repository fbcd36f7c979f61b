"""Reads the records of a batch for a state machine, in a module of its own so that it can be compiled."""

from __future__ import annotations

from collections.abc import Iterator

from kpybroker.machine.contract import Stored
from kpybroker.wire.records.batch import Batch, read_records
from kpybroker.wire.records.markers import read_marker


def stored_in(batch: Batch, plain: bytes, at_once: int) -> Iterator[list[Stored]]:
    """The records of a batch, in lists of `at_once` and a last one of fewer. `plain` has the decompressed records of a
    compressed batch. Raises KafkaError."""
    found: list[Stored] = []
    if batch.is_control:
        marker = read_marker(batch)
        if marker is not None:
            found.append(Stored(None, None, batch.max_timestamp, batch.base_offset, transaction=marker))
        yield found
        return
    transaction = (batch.producer_id, batch.producer_epoch) if batch.is_transactional else None
    for record in read_records(batch, plain=plain):
        found.append(Stored(record.key, record.value, record.timestamp, record.offset, None, transaction))
        if len(found) == at_once:
            yield found
            found = []
    yield found
