"""The commands of the transaction machine of one `__transaction_state` partition.

Each command lists its errors. All of them may also raise CONCURRENT_TRANSACTIONS, if the previous transaction is
decided but its markers are not yet written to all partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kpybroker.topics import TopicPartition
from kpybroker.transactions.transaction import Transaction, TransactionState


@dataclass(frozen=True, slots=True)
class ProducerIdWanted:
    """The result of a command that needs a new producer id. The caller repeats the command with one."""


class InitProducerId(NamedTuple):
    """Start a producer, or let it continue after an error. The result is (producer id, epoch), or ProducerIdWanted.

    Raises INVALID_TRANSACTION_TIMEOUT; PRODUCER_FENCED if there is a newer producer; CONCURRENT_TRANSACTIONS also while
    a transaction of an earlier producer is being aborted.
    """

    transactional_id: str
    timeout_ms: int
    expected: tuple[int, int] | None = None
    """The producer id and epoch that the client had (KIP-360)."""
    new_producer_id: int | None = None


class AddPartitions(NamedTuple):
    """Add partitions to the transaction. The result is None. Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[TopicPartition]
    client_version: int


class Verify(NamedTuple):
    """Check whether the transaction has these partitions. The result is the missing partitions. Raises the same errors
    as AddPartitions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[TopicPartition]


class End(NamedTuple):
    """Commit or abort. The result is the producer id and epoch of the next transaction, or ProducerIdWanted.

    Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, INVALID_TXN_STATE.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    client_version: int
    new_producer_id: int | None = None


@dataclass(frozen=True, slots=True)
class AwaitEndings:
    """Wait for decided transactions whose markers are not being sent yet. The result is a list of them. After an empty
    list, send the command again."""


class Complete(NamedTuple):
    """Report that every partition has its marker. Has no effect if the transactional id has started another
    transaction."""

    ending: Transaction


class Describe(NamedTuple):
    """Describe a transactional id. The result is the Transaction. Raises TRANSACTIONAL_ID_NOT_FOUND."""

    transactional_id: str


class ListAll(NamedTuple):
    """List transactions. The result is the Transactions that match; empty filters match everything.

    running_ms: list only transactions that began more than this number of milliseconds ago, or that have not begun; if
    it is negative, list all.
    """

    states: frozenset[TransactionState] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    running_ms: int = -1
