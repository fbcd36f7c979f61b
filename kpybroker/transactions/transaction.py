"""The state of one transactional id, and its transitions (KIP-98, KIP-360, KIP-890)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum

from kpybroker.topics import TopicPartition

NO_PRODUCER_ID = -1
NO_EPOCH = -1
LAST_EPOCH = (1 << 15) - 2
"""The last epoch that is assigned to a client. The next epoch is only used in markers, before the producer id
changes."""
V1, V2 = 0, 2
"""Levels of `transaction.version`. With V2, every transaction bumps the producer epoch."""


class TransactionState(IntEnum):
    """The state of a transaction, with the numbers of Kafka's records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def word(self) -> str:
        """The name that Kafka's tools show and use in filters."""
        return self.name.title().replace("_", "")


ENDING = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""The outcome is decided, and the markers are being sent."""
AT_REST = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id: its producer, and its current or last transaction. Times are in milliseconds by the wall
    clock.

    `last_epoch` is the epoch before `producer_epoch`, if it belonged to the same producer, because a repeated request
    may still contain it. Kafka's records do not have this field, so a new coordinator does not have it either, as in
    Kafka.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    last_update_ms: int = -1
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = V1
    last_epoch: int = NO_EPOCH

    @property
    def is_ending(self) -> bool:
        return self.state in ENDING

    @property
    def is_exhausted(self) -> bool:
        """Whether the next epoch needs another producer id."""
        return self.producer_epoch >= LAST_EPOCH

    @property
    def is_used_up(self) -> bool:
        """Whether the epoch is the one above LAST_EPOCH, which is never assigned to a client. The next producer then
        receives another id."""
        return self.producer_epoch > LAST_EPOCH

    @property
    def _bumped_epoch(self) -> int:
        return min(self.producer_epoch, LAST_EPOCH) + 1

    @property
    def commits(self) -> bool:
        """Whether the transaction, which is ending or has ended, is committed."""
        return self.state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)

    # ---- a producer begins

    def may_continue(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer with this id owns the transactional id (KIP-360). A producer that repeats a request also
        owns it if the lost response had a new id for it."""
        return (
            self.producer_epoch == NO_EPOCH
            or producer_id == self.producer_id
            or (producer_id == self.previous_producer_id and producer_epoch >= LAST_EPOCH)
        )

    def needs_id_after(self, expected_epoch: int | None) -> bool:
        """Whether the next epoch after the given one, or after the current one, needs another producer id."""
        if self.is_used_up:  # a marker that fenced a producer used this epoch, and the producer may have received it
            return expected_epoch in (None, self.producer_epoch, self.last_epoch)
        return self.producer_epoch == LAST_EPOCH and expected_epoch in (None, self.producer_epoch)

    def begun(self, timeout_ms: int, expected_epoch: int | None, now_ms: int) -> Transaction | None:
        """The state after a producer has started, or continued after an error, with the next epoch. None if another
        producer has started in the meantime."""
        if expected_epoch is None:
            epoch, last = self.producer_epoch + 1, NO_EPOCH
        elif self.producer_epoch in (NO_EPOCH, expected_epoch):
            epoch, last = self.producer_epoch + 1, self.producer_epoch
        elif expected_epoch == self.last_epoch:
            epoch, last = self.producer_epoch, self.last_epoch  # a repeated request, whose first response was lost
        else:
            return None
        return replace(self._emptied(timeout_ms, now_ms), producer_epoch=epoch, last_epoch=last)

    def renamed(self, producer_id: int, timeout_ms: int, is_same: bool, now_ms: int) -> Transaction:
        """The state after all epochs were used: another producer id, starting with epoch 0. is_same: the producer sent
        its current id."""
        return replace(
            self._emptied(timeout_ms, now_ms),
            producer_id=producer_id,
            producer_epoch=0,
            last_epoch=self.producer_epoch if is_same else NO_EPOCH,
        )

    def _emptied(self, timeout_ms: int, now_ms: int) -> Transaction:
        return replace(
            self,
            state=TransactionState.EMPTY,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=-1,
            last_update_ms=now_ms,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )

    # ---- a transaction runs and ends

    def extended(self, partitions: Iterable[TopicPartition], client_version: int, now_ms: int) -> Transaction:
        """The state with these partitions added. The first partitions begin the transaction."""
        return replace(
            self,
            state=TransactionState.ONGOING,
            partitions=self.partitions.union(partitions),
            start_ms=self.start_ms if self.state is TransactionState.ONGOING else now_ms,
            last_update_ms=now_ms,
            previous_producer_id=self.producer_id,
            client_version=client_version,
        )

    def ended(self, *, commit: bool, client_version: int, next_producer_id: int, now_ms: int) -> Transaction:
        """The state after the outcome is decided. With V2, the epoch in the markers fences all earlier requests."""
        bumps = client_version >= V2
        return replace(
            self,
            state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            producer_epoch=self._bumped_epoch if bumps else self.producer_epoch,
            last_epoch=self.producer_epoch if bumps else self.last_epoch,
            start_ms=self.start_ms if self.state is TransactionState.ONGOING else now_ms,
            last_update_ms=now_ms,
            previous_producer_id=self.producer_id,
            next_producer_id=next_producer_id,
            client_version=client_version,
        )

    def fenced(self, level: int, now_ms: int) -> Transaction:
        """The state after the coordinator aborts the transaction. It fences the producer at every level of
        `transaction.version`."""
        bumped = replace(self, producer_epoch=self._bumped_epoch, last_epoch=NO_EPOCH) if level < V2 else self
        return bumped.ended(
            commit=False, client_version=V2 if level >= V2 else V1, next_producer_id=NO_PRODUCER_ID, now_ms=now_ms
        )

    def completed(self, now_ms: int) -> Transaction:
        """The state after every partition has its marker."""
        done = replace(
            self,
            state=TransactionState.COMPLETE_COMMIT if self.commits else TransactionState.COMPLETE_ABORT,
            partitions=frozenset(),
            last_update_ms=now_ms,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )
        if self.client_version >= V2 and self.next_producer_id != NO_PRODUCER_ID:
            return replace(done, producer_id=self.next_producer_id, producer_epoch=0)
        return done

    @property
    def following(self) -> tuple[int, int]:
        """The producer id and epoch of the next transaction, once this one is ending (EndTxn 5)."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return self.next_producer_id, 0
        return self.producer_id, self.producer_epoch
