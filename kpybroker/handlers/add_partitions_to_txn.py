"""AddPartitionsToTxn (24): add partitions to a transaction.

v2 can return PRODUCER_FENCED; v3 is flexible. Only brokers send v4 and later (KIP-890): such a request contains several
transactions, and for each of them it either adds partitions or verifies that they have been added. v5 can return
TRANSACTION_ABORTABLE.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.metadata.whereabouts import has_partition
from kpybroker.serving.fair_loop import slices
from kpybroker.topics import INTERNAL_TOPICS, TopicPartition
from kpybroker.transactions.commands import AddPartitions
from kpybroker.transactions.transaction import V1
from kpybroker.wire.rpc.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker

FENCED_SINCE = 2
MANY_SINCE = 4
ASKED_AT_ONCE = 100
"""How many transactions in a broker's request are processed concurrently."""

Codes = dict[TopicPartition, ErrorCode]


async def handle(broker: Broker, call: Call, request: Request) -> Response:
    """Return an error code for each partition. If a partition is unknown, no partition of its transaction is added."""
    if call.version >= MANY_SINCE:
        asked = request.transactions
        if len(asked) == 1:
            return Response(results_by_transaction=[await _of_broker(broker, asked[0])])
        return Response(results_by_transaction=await _of_brokers(broker, asked))
    places = _places(request.v3_and_below_topics)
    codes = _unfit(broker, places, may_be_internal=False)
    if not codes:
        command = AddPartitions(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            places,
            V1,
        )
        codes = dict.fromkeys(places, await _add(broker, call, command))
    return Response(results_by_topic_v3_and_below=_results(request.v3_and_below_topics, codes))


def refuse(request: Request, refusal: KafkaError) -> Response:
    """Refuse every partition of a client's request, or the whole request of a broker."""
    topics = request.v3_and_below_topics
    if request.transactions or not topics:
        return Response(error_code=refusal.code)
    return Response(results_by_topic_v3_and_below=_results(topics, dict.fromkeys(_places(topics), refusal.code)))


async def _add(broker: Broker, call: Call, command: AddPartitions) -> ErrorCode:
    try:
        await broker.coordinators.transactions.add(command, broker.config.request_timeout_ms)
    except KafkaError as refusal:
        if refusal.code is ErrorCode.PRODUCER_FENCED and call.version < FENCED_SINCE:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return refusal.code
    return ErrorCode.NONE


async def _of_brokers(broker: Broker, asked: Sequence[AddPartitionsToTxnTransaction]) -> list[AddPartitionsToTxnResult]:
    results: list[AddPartitionsToTxnResult] = []
    for some in slices(asked, ASKED_AT_ONCE):
        if results:
            await broker.long_work.turn()
        results += await asyncio.gather(*(_of_broker(broker, each) for each in some))
    return results


async def _of_broker(broker: Broker, asked: AddPartitionsToTxnTransaction) -> AddPartitionsToTxnResult:
    places = _places(asked.topics)
    codes = _unfit(broker, places, may_be_internal=True) or await broker.coordinators.transactions_client.answer(
        asked.transactional_id, asked.producer_id, asked.producer_epoch, places, add=not asked.verify_only
    )
    return AddPartitionsToTxnResult(
        transactional_id=asked.transactional_id, topic_results=_results(asked.topics, codes)
    )


def _places(topics: Sequence[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


def _unfit(broker: Broker, places: list[TopicPartition], *, may_be_internal: bool) -> Codes:
    """The error codes if any partition cannot be added; empty if all can be added.

    Clients cannot add partitions of internal topics: AddOffsetsToTxn does that.
    """
    codes = {}
    image = broker.metadata.image
    shows_others = bool(image.views or image.retirements)
    for place in places:
        if place[0] in INTERNAL_TOPICS and not may_be_internal:
            codes[place] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif not has_partition(image, *place):
            shown = image.read_only(place[0]) if shows_others else None
            codes[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if shown is None else ErrorCode.INVALID_TOPIC_EXCEPTION
    if not codes:
        return {}
    return {place: codes.get(place, ErrorCode.OPERATION_NOT_ATTEMPTED) for place in places}


def _results(topics: Sequence[AddPartitionsToTxnTopic], codes: Codes) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=codes[topic.name, index])
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]
