"""A Produce that may begin a transaction in a partition.

Before anything is appended, this broker verifies with the transaction coordinator that the partition belongs to the
transaction or, from v12 on, has the coordinator add it. This prevents records of a transaction that no coordinator
would end (KIP-890). The connection waits in the meantime, because later records of the same producer must not be
appended first.
"""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from kpybroker.call import Call, Reply
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.security.authorizer import AclResource, Operation
from kpybroker.serving.authorization import allows
from kpybroker.serving.produce.append import ACKS, Verdicts
from kpybroker.serving.produce.rights import delivers, may_write
from kpybroker.serving.produce.validation import append_later, validate_and_append, validating_all
from kpybroker.storage.producers.transactions import NOT_NEEDED, Verification
from kpybroker.topics import TopicPartition
from kpybroker.wire.records.batch import HEADER_BYTES, TRANSACTIONAL, Batch, split
from kpybroker.wire.rpc.produce import Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

ATTRIBUTES_AT = 22
"""The position of the low byte of a batch's attributes."""
ABORTABLE_SINCE = 11
ADDS_SINCE = 12

COORDINATOR_IS_AWAY = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""Errors of the coordinator that are replaced by NOT_ENOUGH_REPLICAS, as in Kafka. With the original errors, producers
would fail or look for another leader instead of retrying."""


def produce(broker: Broker, call: Call, request: Request) -> Reply | Coroutine[Any, Any, Reply | Response | None]:
    """Append to all partitions. If there are transactional records, call the transaction coordinator first."""
    if request.acks in ACKS and is_transactional(request):
        return append_in_transaction(broker, call, request)
    return validate_and_append(broker, call, request, {})


def is_transactional(request: Request) -> bool:
    """Whether any of the batches belongs to a transaction."""
    return any(
        data.records is not None and len(data.records) >= HEADER_BYTES and data.records[ATTRIBUTES_AT] & TRANSACTIONAL
        for topic in request.topic_data
        for data in topic.partition_data
    )


def append_in_transaction(
    broker: Broker, call: Call, request: Request
) -> Reply | Coroutine[Any, Any, Reply | Response | None]:
    """Append at once if the coordinator need not be called, otherwise later."""
    batches = _transactional_batches(broker, call, request)
    verdicts: Verdicts = {}
    transactional_id = request.transactional_id
    if transactional_id is None or not (
        delivers(broker, call) or allows(broker, call, Operation.WRITE, AclResource.TRANSACTIONAL_ID, transactional_id)
    ):
        _refuse_all(broker, call, request, verdicts, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    elif len({(batch.producer_id, batch.producer_epoch) for batch in batches.values()}) > 1:
        _refuse_all(broker, call, request, verdicts, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    else:
        _begin(broker, batches, verdicts, adds=call.version >= ADDS_SINCE)
    asking = {place: batches[place] for place, verdict in verdicts.items() if isinstance(verdict, Verification)}
    if not asking:
        return validate_and_append(broker, call, request, verdicts)
    if call.version < ADDS_SINCE and not broker.config.transaction_partition_verification_enable:
        return validate_and_append(broker, call, request, verdicts | dict.fromkeys(asking, NOT_NEEDED))
    for topic in request.topic_data:
        for data in topic.partition_data:
            if data.records is not None:
                data.records = memoryview(
                    bytearray(data.records)
                )  # the receive buffer will be reused before the append
    return _ask_first(broker, call, request, asking, verdicts)


def _transactional_batches(broker: Broker, call: Call, request: Request) -> dict[TopicPartition, Batch]:
    """The readable batches that the caller may append. `append_all` refuses the others."""
    found = {}
    for topic in request.topic_data:
        name = topic.name if call.version < 13 else broker.metadata.topic_name(topic.topic_id)
        if name is not None and not may_write(broker, call, name):
            continue
        for data in topic.partition_data:
            try:
                batch = split(data.records, 1)[0] if data.records is not None else None
            except KafkaError:
                continue
            if name is not None and batch is not None and batch.is_transactional and batch.producer_id >= 0:
                found[name, data.index] = batch
    return found


def _refuse_all(broker: Broker, call: Call, request: Request, verdicts: Verdicts, code: ErrorCode) -> None:
    for topic in request.topic_data:
        name = topic.name if call.version < 13 else broker.metadata.topic_name(topic.topic_id)
        for data in topic.partition_data:
            verdicts[name or "", data.index] = KafkaError(code)


def _begin(broker: Broker, batches: dict[TopicPartition, Batch], verdicts: Verdicts, *, adds: bool) -> None:
    """Store which partitions need a verification, and refuse the partitions in which the producer is fenced."""
    for place, batch in batches.items():
        try:
            producers = broker.replication.hosting.leads(*place).log.producers
        except KafkaError:
            continue  # `append_all` will refuse it
        try:
            verification = producers.verify(
                batch.producer_id, batch.producer_epoch, batch.base_sequence, broker.world.wall_ms(), bumps=adds
            )
        except KafkaError as refusal:
            verdicts[place] = refusal
        else:
            if verification is not None:
                verdicts[place] = verification


async def _ask_first(
    broker: Broker, call: Call, request: Request, asking: dict[TopicPartition, Batch], verdicts: Verdicts
) -> Reply:
    await _ask(broker, call, request, asking, verdicts)
    if call.version >= ADDS_SINCE:
        # If the coordinator was still ending the previous transaction, the marker of that transaction may have arrived
        # in the meantime, which voids the verification. In this version, the epoch proves that these records belong to
        # the next transaction, so the verification is repeated. In earlier versions, they could be late records of the
        # previous transaction.
        again = {place: batch for place, batch in asking.items() if _is_void(broker, place, verdicts[place])}
        if again:
            _begin(broker, again, verdicts, adds=True)
            still = {place: batch for place, batch in again.items() if isinstance(verdicts[place], Verification)}
            await _ask(broker, call, request, still, verdicts)
    return await append_later(broker, call, request, verdicts, partial(validating_all, broker, call, request, {}))


async def _ask(
    broker: Broker, call: Call, request: Request, asking: dict[TopicPartition, Batch], verdicts: Verdicts
) -> None:
    if not asking:
        return
    batch = next(iter(asking.values()))
    told = await broker.coordinators.transactions_client.verify(
        request.transactional_id or "",
        batch.producer_id,
        batch.producer_epoch,
        list(asking),
        add=call.version >= ADDS_SINCE,
    )
    for place in asking:
        if told[place]:
            verdicts[place] = _error_for_producer(told[place], call.version)


def _is_void(broker: Broker, place: TopicPartition, verdict: Verification | KafkaError) -> bool:
    if not isinstance(verdict, Verification):
        return False
    try:
        return broker.replication.hosting.leads(*place).log.producers.is_void(verdict)
    except KafkaError:
        return False  # `append_all` will refuse it


def _error_for_producer(code: ErrorCode, version: int) -> KafkaError:
    """The error for the producer in place of the coordinator's error."""
    if code == ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
    if code == ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_SINCE:
        return KafkaError(ErrorCode.INVALID_TXN_STATE, "Partition was not added to the transaction")
    if code in COORDINATOR_IS_AWAY:
        return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, f"the transaction could not be verified: {code.name}")
    return KafkaError(code)
