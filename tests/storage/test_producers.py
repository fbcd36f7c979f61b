"""The batches of an idempotent producer are accepted once and in order, even after a snapshot was loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.storage.log.log import Log
from kpybroker.storage.producers.producers import BATCHES_KEPT, ProducerStates
from kpybroker.wire.records.batch import Batch, Record, encode_batch, split
from kpybroker.wire.records.markers import Marker, encode_marker
from kpybroker.wire.records.record_removal import emptied
from tests.storage.workshop import SMALL, WORLD, reopened

FROM_KAFKA = bytes.fromhex(
    "0001bd540d320000000200000000000000000000000000000000000000000000000000000000"
    "01a1fc82c1b3ffffffffffffffffffffffff0000000000000003000000000000000000000000000100000000"
    "000001a1fc83140fffffffffffffffffffffffff"
)
"""A snapshot that Apache Kafka 4.3.1 wrote: producers 0 and 3 with one record each, at offsets 0 and 1."""


def batch(
    sequence: int,
    count: int = 1,
    *,
    offset: int = 0,
    producer: int = 7,
    epoch: int = 0,
    time: int = 1000,
    transactional: bool = False,
) -> Batch:
    content = encode_batch(
        [Record(0, time, None, b"v")] * count,
        base_offset=offset,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return split(content)[0]


def code_of(states: ProducerStates, of: Batch) -> ErrorCode:
    with pytest.raises(KafkaError) as refusal:
        states.check(of)
    return refusal.value.code


def test_the_last_five_batches_are_recognised() -> None:
    states = ProducerStates()
    for number in range(8):
        assert states.check(batch(number * 2, 2)) is None
        states.update(batch(number * 2, 2, offset=100 + number * 2))
    for number in range(8 - BATCHES_KEPT, 8):
        repeated = states.check(batch(number * 2, 2))
        assert repeated is not None
        assert (repeated.first_offset, repeated.last_offset) == (100 + number * 2, 101 + number * 2)
    assert code_of(states, batch(4, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_gaps_and_old_epochs_are_refused() -> None:
    states = ProducerStates()
    assert states.check(batch(41)) is None, "an unknown producer begins anywhere"
    states.update(batch(41, epoch=3))
    assert code_of(states, batch(43, epoch=3)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(states, batch(42, epoch=2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_of(states, batch(1, epoch=4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(batch(0, epoch=4)) is None
    assert states.check(batch(42, epoch=3)) is None


def test_sequences_wrap() -> None:
    states = ProducerStates()
    states.update(batch(2**31 - 2, 4))
    known = states.get(7)
    assert known is not None
    assert known.last_sequence == 1
    assert states.check(batch(2, 1)) is None
    assert states.check(batch(2**31 - 2, 4)) is not None


def test_producers_expire_by_their_records_time() -> None:
    states = ProducerStates()
    states.update(batch(0, time=1000))
    states.update(batch(0, producer=8, time=2000))
    states.expire(2000, 1000)
    assert [one.producer_id for one in states] == [8]


LIMIT = 20


def filled(limit: int = LIMIT) -> ProducerStates:
    """The states of `LIMIT` producers after one batch of each, in order."""
    states = ProducerStates(limit)
    for number in range(LIMIT):
        states.update(batch(0, offset=number, producer=number))
    return states


def test_a_newcomer_replaces_an_idle_producer() -> None:
    states = filled()
    for number in range(LIMIT, 10 * LIMIT):
        states.update(batch(0, offset=2 * number, producer=number))
        assert states.check(batch(number - LIMIT + 1, producer=3)) is None, "an active producer is known"
        states.update(batch(number - LIMIT + 1, offset=2 * number + 1, producer=3))
        assert len(states) == LIMIT
        assert states.get(number) is not None
    assert code_of(states, batch(1, producer=3)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(batch(7, producer=4)) is None, "a forgotten producer may begin with any sequence"


def test_an_open_transaction_is_never_forgotten() -> None:
    states = ProducerStates(LIMIT)
    for number in range(LIMIT + 10):
        states.update(batch(0, offset=number, producer=number, transactional=True))
    assert len(states) == LIMIT + 10
    for number in range(1000, 1000 + 5 * LIMIT):
        states.update(batch(0, offset=number, producer=number))
    assert all(states.get(number) is not None for number in range(LIMIT + 10))
    assert states.transactions.first_open() == 0


@given(limit=st.integers(1, LIMIT))
def test_a_snapshot_with_more_than_the_limit_keeps_the_newest(limit: int) -> None:
    states = ProducerStates(limit)
    states.load_snapshot(filled().build_snapshot(), LIMIT, 0, 1 << 40)
    assert sorted(known.producer_id for known in states) == list(range(LIMIT - limit, LIMIT))


def test_a_snapshot_has_kafkas_bytes() -> None:
    states = ProducerStates()
    states.load_snapshot(FROM_KAFKA, 2, 0, 1000)
    assert [(one.producer_id, one.last_sequence, one.batches[0].last_offset) for one in states] == [
        (0, 0, 0),
        (3, 0, 1),
    ]
    assert states.build_snapshot() == FROM_KAFKA


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=40))
@settings(deadline=None, max_examples=30)
def test_a_snapshot_keeps_the_newest_batch_of_each(of: list[tuple[int, int]]) -> None:
    states, offset = ProducerStates(), 0
    for producer, count in of:
        known = states.get(producer)
        states.update(batch(known.last_sequence + 1 if known else 0, count, offset=offset, producer=producer))
        offset += count
    again = ProducerStates()
    again.load_snapshot(states.build_snapshot(), offset, 0, 1 << 40)
    assert [(one.producer_id, one.producer_epoch, one.last_timestamp, one.batches[-1:]) for one in states] == [
        (one.producer_id, one.producer_epoch, one.last_timestamp, one.batches) for one in again
    ]


@given(st.integers(0, len(FROM_KAFKA) - 1), st.integers(1, 255))
@settings(deadline=None, max_examples=30)
def test_a_changed_snapshot_is_damage(at: int, change: int) -> None:
    changed = bytearray(FROM_KAFKA)
    changed[at] ^= change
    for content in (bytes(changed), FROM_KAFKA[:at]):
        with pytest.raises(Damage):
            ProducerStates().load_snapshot(content, 2, 0, 1000)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("rolled_at", range(6))
def test_batches_in_flight_at_a_stop_are_recognised(tmp_path: Path, rolled_at: int, clean: bool) -> None:
    settings = replace(SMALL, segment_bytes=1 << 20)
    log = Log.open(WORLD, str(tmp_path / "t-0"), "t", 0, settings, clean=True)
    now_ms = WORLD.wall_ms()
    for sequence in range(20):
        if sequence == 15 + rolled_at:
            log.roll()
        log.append([batch(sequence, time=now_ms)], 0, now_ms)
        log.append([batch(sequence, time=now_ms, producer=8)], 0, now_ms)
    log.flush()
    if clean:
        log.close()
    again = reopened(log, clean=clean)
    for producer in (7, 8):
        for sequence in range(15, 20):
            appended = again.append([batch(sequence, time=now_ms, producer=producer)], 0, now_ms)
            assert appended.duplicate
            assert appended.base_offset == 2 * sequence + producer - 7


def test_a_marker_that_cleaning_has_emptied_still_tells_its_epoch() -> None:
    """After a replay of the compacted log, earlier epochs of the producer are still fenced."""
    marker = split(encode_marker(Marker(7, 3, 0, commits=False), 2000))[0]
    marker.patch(9, 0)
    live, replayed = ProducerStates(), ProducerStates()
    for states, ending in ((live, marker), (replayed, split(bytearray(emptied(marker)))[0])):
        states.update(batch(0, offset=4, epoch=1))
        states.update(ending)
        (known,) = states
        assert (known.producer_epoch, known.batches, known.current_txn_first_offset) == (3, [], -1)
        assert code_of(states, batch(0, offset=12, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH
