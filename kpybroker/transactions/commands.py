"""What may be asked of the transaction machine of one `__transaction_state` partition. Errors are said at each command.

All of them may raise CONCURRENT_TRANSACTIONS: the last transaction is decided, and its markers are on their way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kpybroker.topics import TopicPartition
from kpybroker.transactions.transaction import Transaction, TransactionState


@dataclass(frozen=True, slots=True)
class ProducerIdWanted:
    """The answer to a command that takes a new producer id and brought none: ask again with one."""


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """A producer begins, or goes on after an error; answered with (producer id, epoch), or ProducerIdWanted.

    Raises: INVALID_TRANSACTION_TIMEOUT; PRODUCER_FENCED where another one came after it; CONCURRENT_TRANSACTIONS, too,
    while a transaction of its predecessor is aborted.
    """

    transactional_id: str
    timeout_ms: int
    expected: tuple[int, int] | None = None
    """The id and epoch that it has had (KIP-360)."""
    new_producer_id: int | None = None


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """The transaction writes to these; answered with None.

    Raises: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[TopicPartition]
    client_version: int


@dataclass(frozen=True, slots=True)
class Verify:
    """Does the transaction write to these? Answered with the places that it does not; raises as AddPartitions does."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class End:
    """Commit or abort; answered with the producer id and epoch of the next transaction, or ProducerIdWanted.

    Raises: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, INVALID_TXN_STATE.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    client_version: int
    new_producer_id: int | None = None


@dataclass(frozen=True, slots=True)
class AwaitEndings:
    """The decided transactions whose markers nobody has been told to send; the answer waits until there may be some.

    An empty answer says: ask again.
    """


@dataclass(frozen=True, slots=True)
class Complete:
    """Every partition has its marker. Of no effect where the transaction is another one by now."""

    ending: Transaction


@dataclass(frozen=True, slots=True)
class Describe:
    """Answered with the Transaction. Raises TRANSACTIONAL_ID_NOT_FOUND."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class ListAll:
    """Answered with the Transactions that pass; empty filters let everything through.

    running_ms: those that began before so many milliseconds, or have not begun; negative: all.
    """

    states: frozenset[TransactionState] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    running_ms: int = -1
