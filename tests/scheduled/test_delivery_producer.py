"""Tests that a partition never forgets the deliveries that it has, whatever the timestamps of their records are."""

from __future__ import annotations

from kpybroker.storage.producers.producers import DELIVERY_PRODUCER, ProducerStates
from kpybroker.wire.records.batch import Batch, Record, encode_batch

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000


def _batch(producer_id: int, offset: int, timestamp_ms: int) -> Batch:
    record = Record(0, timestamp_ms, None, b"x")
    encoded = encode_batch(
        [record], base_offset=offset, producer_id=producer_id, producer_epoch=3, base_sequence=offset
    )
    return Batch(memoryview(encoded))


def test_the_producer_of_deliveries_does_not_expire() -> None:
    states = ProducerStates()
    old_ms = NOW_MS - 30 * DAY_MS
    states.update(_batch(7, 0, old_ms))
    states.update(_batch(DELIVERY_PRODUCER, 1, old_ms))
    snapshot = states.build_snapshot()
    states.expire(NOW_MS, DAY_MS)
    loaded = ProducerStates()
    loaded.load_snapshot(snapshot, 2, NOW_MS, DAY_MS)
    for each in (states, loaded):
        assert each.get(7) is None
        repeated = each.check(_batch(DELIVERY_PRODUCER, 1, old_ms))
        assert repeated is not None
        assert repeated.first_offset == 1


def test_it_is_not_removed_for_other_producers() -> None:
    states = ProducerStates(limit=10)
    states.update(_batch(DELIVERY_PRODUCER, 0, NOW_MS))
    for number in range(1, 100):
        states.update(_batch(number, number, NOW_MS))
    assert states.get(DELIVERY_PRODUCER) is not None
    assert len(states) == 10
