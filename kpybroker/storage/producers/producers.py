"""The producers of a log, each with its epoch, its last five batches and its open transaction.

The snapshot file is that of Kafka: version int16 = 1, CRC-32C uint32 of the rest, count int32, and for each producer
its id int64, epoch int16, last sequence int32, last offset int64, offset delta int32, timestamp int64, coordinator
epoch int32, and the first offset of its open transaction int64. A snapshot contains only the newest batch of each
producer. Source: KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.storage.producers.transactions import NOT_NEEDED, Ended, Transactions, Verification, Verifications
from kpybroker.wire.records.batch import TRANSACTIONAL, Batch
from kpybroker.wire.records.checksum import crc32c
from kpybroker.wire.records.markers import Marker, read_marker

PRODUCER_EXPIRATION_MS: Final = 24 * 60 * 60 * 1000
"""Kafka's producer.id.expiration.ms."""
BATCHES_KEPT: Final = 5
DELIVERY_PRODUCER: Final = 1 << 62
"""The producer id of all deliveries of scheduled records: the leader of a partition of a delivery log is the only one
that delivers to the topic's partition with the same index, and no controller allocates this id. It never expires,
because the timestamps of its records are those of their producers, and a delivery may be repeated after any time."""
PRODUCERS_MAX: Final = 30_000
"""The maximum number of producers of one log. For each further producer, an idle one is removed. Writing a snapshot
with this many producers blocks the event loop for about 30 ms. A producer takes about 450 bytes of memory."""
_LOOKED_AT: Final = 8
_HEADER: Final = Struct(">hI")
_COUNT: Final = Struct(">i")
_ENTRY: Final = Struct(">qhiqiqiq")
_SEQUENCE_MASK: Final = 0x7FFFFFFF
_GAP_MAX: Final = 1 << 30
"""Sequences wrap, so a sequence that is further ahead is one from the past."""


class Written(NamedTuple):
    """A batch that is in the log."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class Producer:
    """The state of one producer id. As in Kafka, timestamps are those of its records."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "last_timestamp",
        "producer_epoch",
        "producer_id",
    )

    def __init__(self, producer_id: int, producer_epoch: int = -1) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.batches: list[Written] = []
        self.last_timestamp = -1
        self.coordinator_epoch = -1
        self.current_txn_first_offset = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def idleness(self) -> tuple[bool, int]:
        """The sort key for removal. The producer with the oldest batch is removed first, but transactional producers
        and that of deliveries are removed last, because their epochs and sequences fence earlier batches."""
        is_kept = self.coordinator_epoch >= 0 or self.producer_id == DELIVERY_PRODUCER
        return is_kept, self.batches[-1].last_offset if self.batches else -1


def _idleness(known: Producer) -> tuple[bool, int]:
    return known.idleness


class ProducerStates:
    """All producers of one log. `check` only reads the state, and `update` changes it.

    At most `limit` producers are stored, unless more of them have an open transaction, because these are not removed. A
    producer that was removed is treated like an unknown producer: it may begin with any sequence, and a batch that it
    sends twice is stored twice.
    """

    __slots__ = ("_by_id", "_limit", "snapshot_offset", "transactions", "verifications")

    def __init__(self, limit: int = PRODUCERS_MAX) -> None:
        self._limit = limit
        self._by_id: dict[int, Producer] = {}
        self.transactions = Transactions()
        self.verifications = Verifications()
        self.snapshot_offset = -1
        """The offset of the snapshot from which this state was loaded; -1 if there was none."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Producer]:
        """All stored producers."""
        return iter(self._by_id.values())

    def get(self, producer_id: int) -> Producer | None:
        return self._by_id.get(producer_id)

    def has_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has an open transaction in this log with this epoch."""
        known = self._by_id.get(producer_id)
        return known is not None and known.current_txn_first_offset >= 0 and known.producer_epoch == producer_epoch

    def verify(
        self, producer_id: int, producer_epoch: int, sequence: int, now_ms: int, *, bumps: bool
    ) -> Verification | None:
        """The verification that an append needs to begin a transaction; None if a transaction is already open
        (KIP-890).

        `bumps` means that the producer uses transaction version 2, in which each transaction has its own epoch. Raises
        INVALID_PRODUCER_EPOCH.
        """
        if self.has_open(producer_id, producer_epoch):
            return None
        self.check_epoch(producer_id, producer_epoch)
        return self.verifications.begin(producer_id, producer_epoch, sequence, now_ms, bumps=bumps)

    def require_transaction(self, producer_id: int, producer_epoch: int, verified: Verification | None) -> None:
        """Raise INVALID_TXN_STATE if no transaction is open or verified. Called before transactional records are
        appended."""
        if verified is NOT_NEEDED or self.has_open(producer_id, producer_epoch):
            return
        if verified is None or self.verifications.get(producer_id) is not verified:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the records are not part of an ongoing transaction")

    def is_void(self, verified: Verification) -> bool:
        """Whether a marker was written since the verification began, so that its result is outdated."""
        waiting = self.verifications.get(verified.producer_id)
        return waiting is not verified and not self.has_open(verified.producer_id, verified.producer_epoch)

    def check(self, batch: Batch, verified: Verification | None = None, gaps: bool = False) -> Written | None:
        """The earlier batch that `batch` repeats; None if there is none and `batch` may be appended. With `gaps`, its
        sequence may be higher than the next one.

        Raises INVALID_TXN_STATE for transactional records outside a transaction or other records within one,
        INVALID_PRODUCER_EPOCH for an older epoch, and OUT_OF_ORDER_SEQUENCE_NUMBER for a gap. An unknown producer may
        begin with any sequence, because its state may have been deleted with its records. However, it may not begin
        with a higher sequence than the one that was verified.
        """
        known = self._by_id.get(batch.producer_id)
        if known is None:
            if batch.attributes & TRANSACTIONAL:
                self.require_transaction(batch.producer_id, batch.producer_epoch, verified)
                if not gaps:
                    self._require_first(batch)
            return None
        first = batch.base_sequence
        if batch.producer_epoch == known.producer_epoch:
            last = (first + batch.last_offset_delta) & _SEQUENCE_MASK
            for written in known.batches:
                if written.first_sequence == first and written.last_sequence == last:
                    return written
            expected = (known.last_sequence + 1) & _SEQUENCE_MASK
        else:
            expected = 0
        if batch.attributes & TRANSACTIONAL:
            self.require_transaction(batch.producer_id, batch.producer_epoch, verified)
        self.check_epoch(known.producer_id, batch.producer_epoch)
        if first != expected and not (gaps and (first - expected) & _SEQUENCE_MASK < _GAP_MAX):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {batch.producer_id} sent sequence {first}, expected {expected}",
            )
        if known.current_txn_first_offset >= 0 and not batch.attributes & TRANSACTIONAL:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {batch.producer_id} has a transaction open, and these records are not part of it",
            )
        return None

    def _require_first(self, batch: Batch) -> None:
        waiting = self.verifications.get(batch.producer_id)
        lowest = batch.base_sequence if waiting is None else 0 if waiting.begins_at_zero else waiting.lowest_sequence
        if batch.base_sequence > lowest:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {batch.producer_id} sent sequence {batch.base_sequence}, expected {lowest}",
            )

    def check_epoch(self, producer_id: int, producer_epoch: int) -> None:
        """Raise INVALID_PRODUCER_EPOCH if the producer has a newer epoch."""
        known = self._by_id.get(producer_id)
        if known is not None and producer_epoch < known.producer_epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {producer_epoch} of producer {producer_id} is older than {known.producer_epoch}",
            )

    def check_marker(self, marker: Marker, transaction_version: int) -> None:
        """Raise INVALID_PRODUCER_EPOCH, or TRANSACTION_COORDINATOR_FENCED if there is a newer coordinator epoch.

        With transaction version 2, the marker of a transaction has the next epoch. A marker with the epoch of an open
        transaction is therefore a late marker of the previous transaction (KIP-1228).
        """
        self.check_epoch(marker.producer_id, marker.producer_epoch)
        known = self._by_id.get(marker.producer_id)
        if known is None:
            return
        if transaction_version >= 2 and self.has_open(marker.producer_id, marker.producer_epoch):
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"the transaction of producer {marker.producer_id} in epoch {marker.producer_epoch} is a newer one",
            )
        if marker.coordinator_epoch < known.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {marker.coordinator_epoch} is older than {known.coordinator_epoch}",
            )

    def update(self, batch: Batch) -> Ended | None:
        """Add a batch of the log, with assigned offsets and a producer id.

        Return the transaction that the batch ends, if there is one.
        """
        marker = read_marker(batch) if batch.is_control else None
        is_emptied = batch.is_control and not batch.record_count
        if batch.is_control and marker is None and not is_emptied:
            return None
        known = self._by_id.get(batch.producer_id)
        if known is None:
            if len(self._by_id) >= self._limit:
                self._forget_one()
            known = self._by_id[batch.producer_id] = Producer(batch.producer_id, batch.producer_epoch)
        elif known.producer_epoch != batch.producer_epoch:
            known.producer_epoch = batch.producer_epoch
            known.batches = []
        known.last_timestamp = batch.max_timestamp
        if is_emptied:
            return None  # cleaning has kept the header of the producer's newest marker, because of its epoch
        if marker is not None:
            return self._end_transaction(known, marker, batch.base_offset)
        first, delta = batch.base_sequence, batch.last_offset_delta
        kept = known.batches
        if len(kept) == BATCHES_KEPT:
            del kept[0]
        last_sequence = (first + delta) & _SEQUENCE_MASK if first >= 0 else -1
        kept.append(Written(first, last_sequence, batch.base_offset + delta, delta, batch.max_timestamp))
        if batch.attributes & TRANSACTIONAL:
            self.verifications.done(known.producer_id)
            if known.current_txn_first_offset < 0:
                known.current_txn_first_offset = batch.base_offset
                self.transactions.begin(known.producer_id, batch.base_offset)
        return None

    def _end_transaction(self, known: Producer, marker: Marker, offset: int) -> Ended | None:
        self.verifications.done(known.producer_id)
        known.coordinator_epoch = marker.coordinator_epoch
        first_offset, known.current_txn_first_offset = known.current_txn_first_offset, -1
        if first_offset < 0:
            return None
        return Ended(known.producer_id, first_offset, offset, not marker.commits)

    def _forget_one(self) -> None:
        """Remove the producer with the least `idleness` among the first few producers. The others are moved to the
        end."""
        some = list(islice(self._by_id.values(), _LOOKED_AT))
        for known in some:
            del self._by_id[known.producer_id]
        gone = min((known for known in some if known.current_txn_first_offset < 0), key=_idleness, default=None)
        self._by_id.update((known.producer_id, known) for known in some if known is not gone)

    def _keep_limit(self) -> None:
        """Apply the limit to a snapshot that has more producers, for example one from Apache Kafka."""
        more = len(self._by_id) - self._limit
        if more > 0:
            idle = sorted((each for each in self if each.current_txn_first_offset < 0), key=_idleness)
            for known in idle[:more]:
                del self._by_id[known.producer_id]

    def forget_transaction(self, known: Producer) -> None:
        """Remove the open transaction of a producer, because cleaning has removed its records and its marker."""
        self.transactions.forget(known.current_txn_first_offset)
        known.current_txn_first_offset = -1

    def recall(self, batch: Batch) -> None:
        """Add a batch from before the snapshot. This must be called in the order of offsets."""
        known = self._by_id.get(batch.producer_id)
        if known is None or not known.batches or known.producer_epoch != batch.producer_epoch:
            return
        newest = known.batches[-1]
        if batch.last_offset < newest.last_offset and batch.base_sequence >= 0:
            delta = batch.last_offset_delta
            known.batches.insert(
                -1, Written(batch.base_sequence, batch.last_sequence, batch.last_offset, delta, batch.max_timestamp)
            )
            del known.batches[:-BATCHES_KEPT]

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Remove producers without an open transaction whose newest record is older than `expiration_ms`."""
        self.verifications.expire(now_ms, expiration_ms)
        for known in list(self._by_id.values()):
            is_idle = known.current_txn_first_offset < 0 and known.producer_id != DELIVERY_PRODUCER
            if is_idle and now_ms - known.last_timestamp >= expiration_ms:
                del self._by_id[known.producer_id]

    def clear(self) -> None:
        self._by_id.clear()

    def build_snapshot(self) -> bytes:
        parts = [_COUNT.pack(len(self._by_id))]
        for known in self._by_id.values():
            last = known.batches[-1] if known.batches else Written(-1, -1, -1, 0, -1)
            parts.append(
                _ENTRY.pack(
                    known.producer_id,
                    known.producer_epoch,
                    last.last_sequence,
                    last.last_offset,
                    last.offset_delta,
                    known.last_timestamp,
                    known.coordinator_epoch,
                    known.current_txn_first_offset,
                )
            )
        body = b"".join(parts)
        return _HEADER.pack(1, crc32c(body)) + body

    def load_snapshot(self, content: bytes, offset: int, now_ms: int, expiration_ms: int) -> None:
        """Load a snapshot at `offset`, except producers that have expired. Raises Damage."""
        if len(content) < _HEADER.size + _COUNT.size:
            raise Damage("producer snapshot is truncated")
        version, crc = _HEADER.unpack_from(content)
        body = content[_HEADER.size :]
        (count,) = _COUNT.unpack_from(body)
        if version != 1 or crc != crc32c(body) or len(body) != _COUNT.size + count * _ENTRY.size:
            raise Damage("producer snapshot is corrupt")
        self._by_id.clear()
        for entry in _ENTRY.iter_unpack(body[_COUNT.size :]):
            producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, start = entry
            known = Producer(producer_id, epoch)
            known.last_timestamp = timestamp
            known.coordinator_epoch = coordinator_epoch
            known.current_txn_first_offset = start
            if last_offset >= 0:
                first = (last_sequence - delta) & _SEQUENCE_MASK if last_sequence >= 0 else -1
                known.batches = [Written(first, last_sequence, last_offset, delta, timestamp)]
            if start >= 0 or now_ms - timestamp < expiration_ms or producer_id == DELIVERY_PRODUCER:
                self._by_id[producer_id] = known
        self._keep_limit()
        self.transactions = Transactions()
        for start, producer_id in sorted((one.current_txn_first_offset, one.producer_id) for one in self):
            if start >= 0:
                self.transactions.begin(producer_id, start)
        self.snapshot_offset = offset
