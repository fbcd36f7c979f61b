"""The state of one partition of a delivery log: the pending records by time, and the delivery in progress.

The state depends only on the committed records of the log. An entry that was written in a transaction is pending from
the marker that commits it on.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence

from kpybroker.scheduled.due_index import DueIndex
from kpybroker.scheduled.entries import (
    CANCEL,
    DELIVERED,
    DELIVERY,
    ENTRY,
    ENTRY_HEADER,
    INDEX_BITS,
    Delivery,
    Stair,
    read_cancel_key,
    read_delivered,
    read_delivery,
    read_dues,
    read_offset,
)
from kpybroker.wire.records.batch import Batch, Record, read_records
from kpybroker.wire.records.markers import read_marker

SEQUENCE_MASK = 0x7FFFFFFF
EVERY_POSITION = (1 << 63) - 1
WORK_A_STEP = 1000


class DeliveryState:
    """The pending records of one partition. `load` is complete before the first delivery is decided.

    Entries, deliveries and cancels: see `entries.py`.
    """

    def __init__(self, first_epoch: int = 0) -> None:
        """`first_epoch`: the producer epoch of the first delivery of a log."""
        self.pending = DueIndex()
        self.applied = 0
        """The offset up to which the log has been applied."""
        self.coverage: tuple[Stair, ...] = ()
        """Which records have been taken for delivery, by the newest delivery."""
        self.delivery: Delivery | None = None
        """The delivery whose end is not in the log yet. Its records may already be in the topic's partition."""
        self.epoch, self.sequence = first_epoch, 0
        """The producer epoch and sequence of the next delivery."""
        self.cancelled: dict[int, int] = {}
        """The due times of pending records that will not be delivered, by position."""
        self.ended: dict[int, None] = {}
        """Entries of which all records have been taken, but whose end is not in the log yet, by offset."""
        self.spent: dict[int, None] = {}
        """Cancels of records that have been taken, and which can be removed from the log, by position."""
        self._open: dict[int, list[tuple[int, array[int]]]] = {}
        """Entries of open transactions, by producer id: offset and due times."""
        self._open_count = 0
        self._committed: dict[int, int] = {}
        """The offsets of the markers that committed pending entries, by the offset of the entry."""
        self._left: dict[int, int] = {}
        """Number of records that have not been taken, for entries with several records, by offset."""
        self._loading: set[int] | None = set()
        """While the log is loaded: the entries whose end is in it. None after that."""

    def __len__(self) -> int:
        """The number of records that will be delivered, or are being delivered."""
        delivering = 0 if self.delivery is None else len(self.delivery.positions)
        return len(self.pending) - len(self.cancelled) + delivering

    @property
    def held(self) -> int:
        """The number of records in memory: also those that are cancelled, and those of open transactions."""
        return len(self.pending) + self._open_count

    def applying(self, batch: Batch) -> Iterator[None]:
        """Apply the next batch of the log in steps, each of which takes about a millisecond. Raises Damage, KafkaError
        if it cannot be read; the next batch may be applied nevertheless."""
        self.applied = batch.next_offset
        if batch.is_control:
            marker = read_marker(batch)
            if marker is not None:
                self.end_transaction(marker.producer_id, batch.base_offset, commits=marker.commits)
            return
        transaction, work = batch.producer_id if batch.is_transactional else None, 0
        for record in read_records(batch):
            self.apply(record, transaction)
            work += len(record.value or b"") // 100 + 1
            if work >= WORK_A_STEP:
                work = 0
                yield

    def apply(self, record: Record, transaction: int | None = None) -> None:
        """Apply the next record of the log. `transaction` is the producer id of an entry in a transaction. Raises
        Damage."""
        key, value = record.key, record.value
        kind = key[0] if key else -1
        if kind == ENTRY:
            if value is None:
                self._end_entry(record)
            else:
                dues_ms = read_dues(value)
                if transaction is None:
                    self._add(record.offset, dues_ms)
                else:
                    self._open.setdefault(transaction, []).append((record.offset, dues_ms))
                    self._open_count += len(dues_ms)
        elif kind == DELIVERY and value is not None:
            self._begin_delivery(read_delivery(value))
        elif kind == DELIVERED and value is not None:
            self._end_delivery(*read_delivered(value))
        elif kind == CANCEL and key is not None:
            self._cancel(read_cancel_key(key), value)

    def end_transaction(self, producer_id: int, offset: int, *, commits: bool) -> None:
        """Apply the marker at this offset."""
        for entry, dues_ms in self._open.pop(producer_id, ()):
            self._open_count -= len(dues_ms)
            if commits:
                self._committed[entry] = offset
                self._add(entry, dues_ms)

    def _add(self, offset: int, dues_ms: Sequence[int]) -> None:
        self.pending.add(dues_ms, offset << INDEX_BITS)
        if len(dues_ms) > 1:
            self._left[offset] = len(dues_ms)

    def _end_entry(self, record: Record) -> None:
        for name, content in record.headers:
            if name == ENTRY_HEADER and content is not None:
                offset = read_offset(content)
                self.ended.pop(offset, None)
                if self._loading is not None:
                    self._loading.add(offset)

    def _begin_delivery(self, delivery: Delivery) -> None:
        self.coverage, self.delivery = delivery.coverage, delivery
        self.epoch, self.sequence = delivery.epoch, (delivery.sequence + len(delivery.positions)) & SEQUENCE_MASK
        if self._loading is None:
            self._take()

    def _end_delivery(self, epoch: int, sequence: int) -> None:
        delivery = self.delivery
        if delivery is not None and (delivery.epoch, delivery.sequence) == (epoch, sequence):
            self.delivery = None

    def is_covered(self, due_ms: int, position: int) -> bool:
        """Whether the record has been taken for delivery."""
        place, entry = (due_ms, position), position >> INDEX_BITS
        begin = self._committed.get(entry, entry)
        return any(place <= (stair.due_ms, stair.position) and begin < stair.end for stair in self.coverage)

    def _take(self) -> None:
        """Remove the records that the coverage says have been taken."""
        if not self.coverage:
            return
        last = max(self.coverage)
        if len(self.coverage) > 1:
            positions = self.pending.take(last.due_ms, last.position, EVERY_POSITION, self.is_covered)
        elif self._committed:
            committed, end = self._committed, last.end

            def is_taken(_: int, position: int) -> bool:
                entry = position >> INDEX_BITS
                return committed.get(entry, entry) < end

            positions = self.pending.take(last.due_ms, last.position, end << INDEX_BITS, is_taken)
        else:
            positions = self.pending.take(last.due_ms, last.position, last.end << INDEX_BITS)
        taken = Counter([position >> INDEX_BITS for position in positions])
        for entry, count in taken.items():
            left = self._left.get(entry, 1) - count
            if left:
                self._left[entry] = left
            else:
                self._left.pop(entry, None)
                self._committed.pop(entry, None)
                self.ended[entry] = None
        for position, due_ms in list(self.cancelled.items()):
            if self.is_covered(due_ms, position):
                del self.cancelled[position]
                self.spent[position] = None

    def _cancel(self, position: int, value: bytes | None) -> None:
        if value is None:
            self.cancelled.pop(position, None)
            self.spent.pop(position, None)
        elif self._loading is not None or not self.is_covered(read_offset(value), position):
            self.cancelled[position] = read_offset(value)
        else:
            self.spent[position] = None

    def loaded(self) -> None:
        """Called once, when the log has been applied up to its last stable offset."""
        ended, self._loading = self._loading, None
        assert ended is not None, "a state is loaded once"
        self._take()
        for offset in ended:
            self.ended.pop(offset, None)

    def forget(self, entry: int) -> None:
        """Forget an entry whose end cannot be written, because the log has lost it."""
        self.ended.pop(entry, None)

    @property
    def is_loaded(self) -> bool:
        return self._loading is None

    def next_due_ms(self) -> int | None:
        """A time before which no record is due; None if no record is pending."""
        return self.pending.next_due_ms()

    def due(self, now_ms: int, most: int) -> list[tuple[int, int]]:
        """The first records that are due, at most `most`, in the order of their delivery: due time and position."""
        return self.pending.first(now_ms, most)

    def delivery_of(self, taken: Sequence[tuple[int, int]], now_ms: int, *, is_all: bool) -> Delivery:
        """The delivery of the records `taken`, which are the first of those that are due, or all of them."""
        mark = (now_ms, EVERY_POSITION) if is_all else taken[-1]
        stair = Stair(*mark, self.applied)
        coverage = tuple(each for each in self.coverage if (each.due_ms, each.position) > mark)
        positions = tuple([position for _, position in taken if position not in self.cancelled])
        return Delivery(self.epoch, self.sequence, positions, (*coverage, stair))
