"""The commands of the transaction machine of one `__transaction_state` partition.

Each command lists its errors. All of them may raise CONCURRENT_TRANSACTIONS: the previous transaction is decided, and
its markers are not written everywhere yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kpybroker.topics import TopicPartition
from kpybroker.transactions.transaction import Transaction, TransactionState


@dataclass(frozen=True, slots=True)
class ProducerIdWanted:
    """The answer to a command that needs a new producer id: the caller repeats the command with one."""


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """A producer starts, or continues after an error. Answered with (producer id, epoch), or ProducerIdWanted.

    Raises INVALID_TRANSACTION_TIMEOUT; PRODUCER_FENCED if a newer producer has taken its place; CONCURRENT_TRANSACTIONS
    also while a transaction of its predecessor is aborted.
    """

    transactional_id: str
    timeout_ms: int
    expected: tuple[int, int] | None = None
    """The producer id and epoch that the client had (KIP-360)."""
    new_producer_id: int | None = None


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Add partitions to the transaction; answered with None. Raises INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[TopicPartition]
    client_version: int


@dataclass(frozen=True, slots=True)
class Verify:
    """Check whether the transaction has these partitions. Answered with the missing ones. Raises the same errors as
    AddPartitions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class End:
    """Commit or abort; answered with the producer id and epoch of the next transaction, or ProducerIdWanted.

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
    """Answered, as soon as there are any, with the decided transactions whose markers are not being sent yet. After an
    empty answer, ask again."""


@dataclass(frozen=True, slots=True)
class Complete:
    """Every partition has its marker. Has no effect if the transactional id has started another transaction by now."""

    ending: Transaction


@dataclass(frozen=True, slots=True)
class Describe:
    """Answered with the Transaction. Raises TRANSACTIONAL_ID_NOT_FOUND."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class ListAll:
    """Answered with the Transactions that match; empty filters match everything.

    running_ms: only those that began more than this many milliseconds ago, or that have not begun; negative: all.
    """

    states: frozenset[TransactionState] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    running_ms: int = -1
