"""Tests what a partition accepts of a producer while the entry of one of its batches is missing in the delivery log."""

from __future__ import annotations

import pytest

from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.scheduled.delivery_logs import MISSING_MAX, MissingEntries
from kpybroker.wire.records.batch import Batch, encode_batch

TOPIC_ID = bytes(16)
LAST = (1 << 31) - 1


def _batch(sequence: int, *, producer_id: int = 7, epoch: int = 0) -> Batch:
    encoded = encode_batch([(b"", b"")], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    return Batch(memoryview(encoded))


@pytest.mark.parametrize(("missing", "later"), [(5, 6), (5, 100), (LAST, 0), (LAST - 1, 3)])
def test_later_batches_wait_and_earlier_ones_do_not(missing: int, later: int) -> None:
    entries = MissingEntries()
    entries.add(TOPIC_ID, 0, _batch(missing))
    with pytest.raises(KafkaError) as refused:
        entries.check(TOPIC_ID, 0, _batch(later))
    assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    entries.check(TOPIC_ID, 0, _batch(missing))
    entries.check(TOPIC_ID, 0, _batch((missing - 1) & LAST))
    entries.remove(TOPIC_ID, 0, _batch(later))
    assert entries.has(TOPIC_ID, 0, _batch(missing))
    entries.remove(TOPIC_ID, 0, _batch(missing))
    entries.check(TOPIC_ID, 0, _batch(later))


def test_other_producers_epochs_and_partitions_do_not_wait() -> None:
    entries = MissingEntries()
    entries.add(TOPIC_ID, 0, _batch(5))
    entries.check(TOPIC_ID, 0, _batch(6, producer_id=8))
    entries.check(TOPIC_ID, 0, _batch(6, epoch=1))
    entries.check(TOPIC_ID, 1, _batch(6))
    entries.check(b"x" * 16, 0, _batch(6))


def test_a_producer_without_an_id_does_not_wait() -> None:
    entries = MissingEntries()
    batch = Batch(memoryview(encode_batch([(b"", b"")])))
    entries.add(TOPIC_ID, 0, batch)
    entries.check(TOPIC_ID, 0, batch)
    assert not entries.has(TOPIC_ID, 0, _batch(-1, producer_id=-1))


def test_the_oldest_producer_is_forgotten() -> None:
    entries = MissingEntries()
    for producer_id in range(MISSING_MAX + 1):
        entries.add(TOPIC_ID, 0, _batch(5, producer_id=producer_id))
    assert not entries.has(TOPIC_ID, 0, _batch(5, producer_id=0))
    assert entries.has(TOPIC_ID, 0, _batch(5, producer_id=1))


def test_a_new_leader_knows_nothing_of_an_earlier_reign() -> None:
    entries = MissingEntries()
    for index in (0, 1):
        entries.add(TOPIC_ID, index, _batch(5))
    entries.forget(TOPIC_ID, 0)
    entries.check(TOPIC_ID, 0, _batch(6))
    assert entries.has(TOPIC_ID, 1, _batch(5))
