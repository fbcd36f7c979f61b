"""The producers of a log: epoch, the last five batches, an open transaction (KIP-98, KIP-360, KIP-890).

The snapshot file is Kafka's: version int16 = 1, CRC-32C uint32 of the rest, an int32 count, and for each producer its
id int64, epoch int16, last sequence int32, last offset int64, offset delta int32, timestamp int64, coordinator epoch
int32, first offset of the open transaction int64. Of the last five batches, a snapshot has only the newest.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from struct import Struct
from typing import NamedTuple

from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.storage.producers.transactions import NOT_NEEDED, Ended, Transactions, Verification, Verifications
from kpybroker.wire.records.batch import TRANSACTIONAL, Batch
from kpybroker.wire.records.checksum import crc32c
from kpybroker.wire.records.markers import Marker, read_marker

PRODUCER_EXPIRATION_MS = 24 * 60 * 60 * 1000
"""Kafka's producer.id.expiration.ms."""
BATCHES_KEPT = 5
PRODUCERS_MAX = 30_000
"""The most producers of one log. For each new one beyond this, one that has been idle for long is forgotten. To write a
snapshot with this many blocks the loop for about 30 ms. A producer takes about 450 bytes of memory."""
_LOOKED_AT = 8
_HEADER = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")
_SEQUENCE_MASK = 0x7FFFFFFF


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
    """The state of one producer id. Timestamps are those of its records, as in Kafka."""

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
        """The producer with the least value is forgotten first: the oldest one; but transactional ones last, because
        their epochs fence earlier producers."""
        return self.coordinator_epoch >= 0, self.batches[-1].last_offset if self.batches else -1


def _idleness(known: Producer) -> tuple[bool, int]:
    return known.idleness


class ProducerStates:
    """All producers of one log. `check` only reads the state, `update` changes it.

    There are at most `limit` of them, not counting those with an open transaction, which a coordinator knows. A
    forgotten producer is treated like an unknown one: it may begin with any sequence, and a batch that it sends twice
    is stored twice.
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
        """All known producers, in the order in which they appeared."""
        return iter(self._by_id.values())

    def get(self, producer_id: int) -> Producer | None:
        return self._by_id.get(producer_id)

    def has_open(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has an open transaction here, in this epoch."""
        known = self._by_id.get(producer_id)
        return known is not None and known.current_txn_first_offset >= 0 and known.producer_epoch == producer_epoch

    def verify(
        self, producer_id: int, producer_epoch: int, sequence: int, now_ms: int, *, bumps: bool
    ) -> Verification | None:
        """The verification that an append needs to begin a transaction; None if one is open already (KIP-890).

        bumps: the producer uses transaction version 2, in which each transaction has a separate epoch. Raises
        INVALID_PRODUCER_EPOCH.
        """
        if self.has_open(producer_id, producer_epoch):
            return None
        self.check_epoch(producer_id, producer_epoch)
        return self.verifications.begin(producer_id, producer_epoch, sequence, now_ms, bumps=bumps)

    def require_transaction(self, producer_id: int, producer_epoch: int, verified: Verification | None) -> None:
        """Called before transactional records are appended. Raises INVALID_TXN_STATE if no transaction is open or
        verified."""
        if verified is NOT_NEEDED or self.has_open(producer_id, producer_epoch):
            return
        if verified is None or self.verifications.get(producer_id) is not verified:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the records are not part of an ongoing transaction")

    def is_void(self, verified: Verification) -> bool:
        """Whether a marker was written since the verification began, so that its answer is out of date."""
        waiting = self.verifications.get(verified.producer_id)
        return waiting is not verified and not self.has_open(verified.producer_id, verified.producer_epoch)

    def check(self, batch: Batch, verified: Verification | None = None) -> Written | None:
        """The earlier batch that `batch` repeats; None if there is none and it may be appended.

        Raises KafkaError: INVALID_TXN_STATE for transactional records outside of a transaction, or other records within
        one; INVALID_PRODUCER_EPOCH for an older epoch; OUT_OF_ORDER_SEQUENCE_NUMBER for a gap. An unknown producer may
        begin with any sequence, since its state may have been deleted with its records; but not with a higher sequence
        than the one that was just verified.
        """
        known = self._by_id.get(batch.producer_id)
        if known is None:
            if batch.attributes & TRANSACTIONAL:
                self.require_transaction(batch.producer_id, batch.producer_epoch, verified)
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
        if first != expected:
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
        """Raises INVALID_PRODUCER_EPOCH if a newer epoch is known."""
        known = self._by_id.get(producer_id)
        if known is not None and producer_epoch < known.producer_epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {producer_epoch} of producer {producer_id} is older than {known.producer_epoch}",
            )

    def check_marker(self, marker: Marker, transaction_version: int) -> None:
        """Raises INVALID_PRODUCER_EPOCH; TRANSACTION_COORDINATOR_FENCED if there is a newer coordinator.

        With transaction version 2, a transaction is ended in the epoch after its own: a marker in the epoch of an open
        transaction is late, and belongs to the previous one (KIP-1228).
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
        """Add a batch that is in the log, with its offsets assigned; it has a producer id.

        Returns the transaction that it ends, if there is one.
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
            return None  # cleaning has kept the header of a producer's newest marker, for its epoch
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
        """Forget the most idle one of a few producers. The others are examined again only after all other producers."""
        some = list(islice(self._by_id.values(), _LOOKED_AT))
        for known in some:
            del self._by_id[known.producer_id]
        gone = min((known for known in some if known.current_txn_first_offset < 0), key=_idleness, default=None)
        self._by_id.update((known.producer_id, known) for known in some if known is not gone)

    def _keep_limit(self) -> None:
        """Apply the limit to a snapshot that has more producers, from before there was a limit, or from Apache
        Kafka."""
        more = len(self._by_id) - self._limit
        if more > 0:
            idle = sorted((each for each in self if each.current_txn_first_offset < 0), key=_idleness)
            for known in idle[:more]:
                del self._by_id[known.producer_id]

    def forget_transaction(self, known: Producer) -> None:
        """The producer has no open transaction: the one that it had was removed by cleaning, with its marker."""
        self.transactions.forget(known.current_txn_first_offset)
        known.current_txn_first_offset = -1

    def recall(self, batch: Batch) -> None:
        """Add a batch from before the snapshot; to be called in the order of their offsets."""
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
        """Forget producers whose newest record is older than this, unless a transaction is open."""
        self.verifications.expire(now_ms, expiration_ms)
        for known in list(self._by_id.values()):
            if known.current_txn_first_offset < 0 and now_ms - known.last_timestamp >= expiration_ms:
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
        """Load the state of a snapshot taken at `offset`, without the producers that have expired. Raises Damage."""
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
            if start >= 0 or now_ms - timestamp < expiration_ms:
                self._by_id[producer_id] = known
        self._keep_limit()
        self.transactions = Transactions()
        for start, producer_id in sorted((one.current_txn_first_offset, one.producer_id) for one in self):
            if start >= 0:
                self.transactions.begin(producer_id, start)
        self.snapshot_offset = offset
