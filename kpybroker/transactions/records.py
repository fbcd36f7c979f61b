"""Encodes and decodes the records of `__transaction_state` in Kafka's schema.

Each record has the whole state of one transactional id; a null value deletes it. Values have version 1 (flexible;
KIP-890) if `transaction.version` is 1 or higher, and version 0 otherwise.
"""

from __future__ import annotations

from collections import defaultdict

from kpybroker.errors import Damage
from kpybroker.machine.contract import Stored
from kpybroker.topics import TopicPartition
from kpybroker.transactions.transaction import Transaction, TransactionState
from kpybroker.wire.stored.prefixed import build_stored, parse_stored, prefix_of
from kpybroker.wire.stored.transaction import PartitionsSchema, TransactionLogKey, TransactionLogValue

TRANSACTION_KEY = 0
"""The only known kind of key. Records with other kinds of keys have no effect."""


def record_of(transaction: Transaction, level: int) -> Stored:
    """The record of a transaction, at a level of `transaction.version`."""
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None
        if transaction.state is TransactionState.EMPTY
        else _by_topic(transaction.partitions),
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        client_transaction_version=transaction.client_version,
    )
    return Stored(
        _key(transaction.transactional_id),
        build_stored(value, 1 if level >= 1 else 0),
        transaction.last_update_ms,
        message=transaction,
    )


def tombstone(transactional_id: str, now_ms: int) -> Stored:
    """The record that deletes a transactional id."""
    return Stored(_key(transactional_id), None, now_ms)


def read_id(record: Stored) -> str | None:
    """The transactional id of a record; None for an unknown kind of record. Raises Damage."""
    if record.key is None or prefix_of(record.key) != TRANSACTION_KEY:
        return None
    return parse_stored(TransactionLogKey, record.key).transactional_id


def read(transactional_id: str, record: Stored) -> Transaction | None:
    """The transaction in a record; None if the record deletes it. Raises Damage."""
    if isinstance(record.message, Transaction):
        return record.message
    if record.value is None:
        return None
    said = parse_stored(TransactionLogValue, record.value)
    try:
        state = TransactionState(said.transaction_status)
    except ValueError:
        raise Damage(f"{transactional_id!r} has the unknown state {said.transaction_status}") from None
    return Transaction(
        transactional_id,
        said.producer_id,
        said.producer_epoch,
        said.transaction_timeout_ms,
        state,
        frozenset((row.topic, index) for row in said.transaction_partitions or () for index in row.partition_ids),
        said.transaction_start_timestamp_ms,
        said.transaction_last_update_timestamp_ms,
        said.previous_producer_id,
        said.next_producer_id,
        said.client_transaction_version,
    )


def check_record(record: Stored) -> None:
    """Raises Damage if a replay cannot read the record."""
    transactional_id = read_id(record)
    if transactional_id is not None:
        read(transactional_id, record)


def _key(transactional_id: str) -> bytes:
    return build_stored(TransactionLogKey(transactional_id=transactional_id))


def _by_topic(partitions: frozenset[TopicPartition]) -> list[PartitionsSchema]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, index in sorted(partitions):
        topics[topic].append(index)
    return [PartitionsSchema(topic=topic, partition_ids=indexes) for topic, indexes in topics.items()]
