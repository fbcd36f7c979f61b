"""Tests the state of a delivery log against a model of its log, its topic, compaction, restarts and clock steps.

The laws: each record that was scheduled and not cancelled in time is delivered exactly once, not before its time; a
state that is loaded from the log equals the one that wrote it.
"""

from __future__ import annotations

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kpybroker.scheduled.entries import (
    ENTRY_HEADER,
    INDEX_BITS,
    Delivery,
    Entry,
    cancel_key,
    delivered_key,
    delivery_key,
    encode_delivered,
    encode_delivery,
    encode_entry,
    encode_offset,
    entry_key,
)
from kpybroker.scheduled.state import DeliveryState
from kpybroker.wire.records.batch import Record

BASE_MS = 1_700_000_000_000


class Deliveries(RuleBasedStateMachine):
    """The leader of one partition, reduced to its decisions. Every record is committed as soon as it is written."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Record] = []
        self.end = 0
        self.now_ms = BASE_MS
        self.state = DeliveryState()
        self.state.loaded()
        self.read = 0
        self.transactions: dict[int, int] = {}
        """The producer ids of entries in transactions, by offset."""
        self.open: dict[int, dict[int, int]] = {}
        """The due times of records in open transactions, by producer id and position."""
        self.markers: dict[int, tuple[int, bool]] = {}
        """Producer id and outcome, by offset."""
        self.aborted: set[int] = set()
        """The offsets of entries in aborted transactions."""
        self.due: dict[int, int] = {}
        """All records that were ever scheduled: due time by position."""
        self.taken_offset: dict[int, int] = {}
        self.cancelled: set[int] = set()
        self.topic: list[int] = []
        """The positions of the delivered records."""
        self.batches: set[tuple[int, int]] = set()

    def write(self, key: bytes, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...] = ()) -> int:
        offset, self.end = self.end, self.end + 1
        self.log.append(Record(offset, self.now_ms, key, value, headers))
        return offset

    def catch_up(self) -> None:
        records = {record.offset: record for record in self.log}
        for offset in range(self.read, self.end):
            if offset in self.markers:
                producer_id, commits = self.markers[offset]
                self.state.end_transaction(producer_id, offset, commits=commits)
            elif offset in records:
                self.state.apply(records[offset], self.transactions.get(offset))
        self.read = self.state.applied = self.end

    @rule(delays=st.lists(st.integers(1, 30), min_size=1, max_size=4))
    def schedule(self, delays: list[int]) -> None:
        rows = [(0, delta, self.now_ms + delay_ms) for delta, delay_ms in enumerate(delays)]
        offset = self.write(entry_key(0, self.end), encode_entry(Entry(self.now_ms, 0, rows, b"")))
        for index, (_, _, due_ms) in enumerate(rows):
            self.due[offset << INDEX_BITS | index] = due_ms

    @rule(delay_ms=st.integers(1, 30), producer_id=st.integers(0, 2))
    def schedule_in_transaction(self, delay_ms: int, producer_id: int) -> None:
        rows = [(0, 0, self.now_ms + delay_ms), (0, 1, self.now_ms + delay_ms + 5)]
        offset = self.write(entry_key(0, self.end), encode_entry(Entry(self.now_ms, 0, rows, b"")))
        self.transactions[offset] = producer_id
        for index, (_, _, due_ms) in enumerate(rows):
            self.open.setdefault(producer_id, {})[offset << INDEX_BITS | index] = due_ms

    @rule(producer_id=st.integers(0, 2), commits=st.booleans())
    def end_transaction(self, producer_id: int, commits: bool) -> None:
        self.markers[self.end] = producer_id, commits
        self.end += 1
        written = self.open.pop(producer_id, {})
        if commits:
            self.due |= written
        self.aborted |= set() if commits else {position >> INDEX_BITS for position in written}

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.due:
            position = data.draw(st.sampled_from(sorted(self.due)))
            self.write(cancel_key(position), encode_offset(self.due[position]))
            if position not in self.taken_offset:
                self.cancelled.add(position)

    @rule(step_ms=st.integers(-30, 40))
    def step_the_clock(self, step_ms: int) -> None:
        self.now_ms += step_ms

    @rule(most=st.integers(1, 4), entries=st.integers(0, 2), cancels=st.integers(0, 1))
    def begin(self, most: int, entries: int, cancels: int) -> None:
        """Decide on a delivery. Before it is in the log, there may be more entries, and cancels, which are too late."""
        self.catch_up()
        state = self.state
        if state.delivery is not None:
            return
        due = state.due(self.now_ms, most)
        if not due:
            return
        delivery = state.delivery_of(due, self.now_ms, is_all=len(due) < most)
        for _ in range(entries):
            self.schedule([1])
        for _, position in due[:cancels]:  # too late
            self.write(cancel_key(position), encode_offset(self.due[position]))
        self.write(delivery_key(), encode_delivery(delivery))
        for _, position in due:
            assert position not in self.taken_offset, "no record is taken twice"
            assert self.due[position] <= self.now_ms, "no record is taken before its time"
            self.taken_offset[position] = self.end
        self.catch_up()

    @rule(is_lost=st.booleans())
    def deliver(self, is_lost: bool) -> None:
        """Append the records to the topic. The acknowledgement may be lost, so that they are sent again."""
        self.catch_up()
        delivery = self.state.delivery
        if delivery is None:
            return
        self.append(delivery)
        if is_lost:
            return
        self.write(delivered_key(), encode_delivered(delivery.epoch, delivery.sequence))
        self.catch_up()

    def append(self, delivery: Delivery) -> None:
        batch = delivery.epoch, delivery.sequence
        if delivery.positions and batch not in self.batches:
            self.batches.add(batch)
            self.topic += delivery.positions

    @rule()
    def write_ends(self) -> None:
        self.catch_up()
        if self.state.delivery is not None:
            return
        for offset in list(self.state.ended):
            self.write(entry_key(0, offset), None, ((ENTRY_HEADER, encode_offset(offset)),))
        for position in list(self.state.spent):
            self.write(cancel_key(position), None)
        self.catch_up()

    @rule()
    def compact(self) -> None:
        log = [record for record in self.log if record.offset not in self.aborted]
        newest = {record.key: record.offset for record in log}
        self.log = [record for record in log if newest[record.key] == record.offset and record.value is not None]

    @rule()
    def restart(self) -> None:
        self.catch_up()
        before = self.facts()
        self.state, self.read = DeliveryState(), 0
        self.catch_up()
        self.state.loaded()
        assert self.facts() == before, "a loaded state equals the live one"

    def facts(self) -> object:
        state = self.state
        pending = [each for each in state.pending.first(1 << 62, 1 << 30) if each[1] not in state.cancelled]
        return pending, len(state), state.delivery, state.epoch, state.sequence, state.coverage, sorted(state.ended)

    @invariant()
    def nothing_is_delivered_twice(self) -> None:
        assert len(set(self.topic)) == len(self.topic)
        assert not self.cancelled & set(self.topic)

    def teardown(self) -> None:
        for producer_id in range(3):
            self.end_transaction(producer_id, True)
        self.now_ms = BASE_MS + 100_000
        for _ in range(len(self.due) + 2):
            self.begin(2, 0, 0)
            self.deliver(False)
        assert set(self.topic) | self.cancelled == set(self.due), "every record is delivered"
        assert not len(self.state)
        self.write_ends()
        self.compact()
        assert len(self.log) <= 2, "only the newest delivery and its end stay in the log"


Deliveries.TestCase.settings = hypothesis_settings(max_examples=200, stateful_step_count=40, deadline=None)
TestDeliveries = Deliveries.TestCase


def test_records_of_open_transactions_and_cancelled_ones_count_as_held() -> None:
    """They take memory, so the limits of pending records include them."""
    model = Deliveries()
    model.schedule([5, 6])
    model.schedule_in_transaction(5, 1)
    model.catch_up()
    assert (len(model.state), model.state.held) == (2, 4)
    model.write(cancel_key(0), encode_offset(model.due[0]))
    model.catch_up()
    assert (len(model.state), model.state.held) == (1, 4)
    model.end_transaction(1, False)
    model.catch_up()
    assert (len(model.state), model.state.held) == (1, 2)


def test_no_delivery_is_repeated_after_the_clock_was_set_back() -> None:
    model = Deliveries()
    model.schedule([5, 100])
    model.now_ms += 10
    model.begin(4, 0, 0)
    model.deliver(False)
    model.now_ms -= 9
    model.schedule([1])
    model.now_ms += 2
    model.begin(4, 0, 0)
    model.deliver(False)
    assert len(model.topic) == 2
    model.restart()
    model.now_ms += 50
    model.begin(4, 0, 0)
    assert model.state.delivery is None
    model.teardown()
