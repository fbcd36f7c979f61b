"""A Produce to a single partition, like most requests. Its response is built from a template of the partition."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from kpybroker.call import Call, Reply
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.serving.produce.append import admit
from kpybroker.serving.produce.refusals import name_leader, refuse_partition
from kpybroker.serving.produce.reply import OneReply, ProduceReply, response_to_one
from kpybroker.storage.log.admission import ALL, RECORDS
from kpybroker.storage.producers.producers import DELIVERY_PRODUCER
from kpybroker.wire.records.batch import TRANSACTIONAL, Batch
from kpybroker.wire.rpc.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    Request,
    Response,
    TopicProduceData,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.replication.partition.partition import Partition
    from kpybroker.storage.log.admission import Appended

Later = Coroutine[Any, Any, Reply | Response | None]


def append_one(
    broker: Broker, call: Call, request: Request, topic: TopicProduceData, data: PartitionProduceData
) -> Reply | Response | Later:
    """Append to the only partition of a request with acks=1 or acks=all."""
    records, data.records = data.records, None  # the connection caches the request, which must not refer to the bytes
    partition = None
    try:
        name = topic.name if call.version < 13 else broker.metadata.topic_name(topic.topic_id)
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        partition, batches = admit(broker, call, request.acks, name, data.index, records)
        batch = batches[0]
        if partition.log.settings.delivery_scheduled or batch.producer_id == DELIVERY_PRODUCER:
            from kpybroker.serving.produce.transactional import produce

            data.records = records
            return produce(broker, call, request)
        if batch.attributes & TRANSACTIONAL and (
            request.transactional_id is None
            or broker.metadata.authorizer is not None
            or not partition.log.producers.has_open(batch.producer_id, batch.producer_epoch)
        ):
            from kpybroker.serving.produce.transactional import append_in_transaction

            data.records = records
            return append_in_transaction(broker, call, request)
        now_ms, known = broker.world.wall_ms(), RECORDS
        if partition.is_internal or partition.log.opens(batch):
            data.records = records
            found = _validate(broker, call, request, data, partition, batch, now_ms)
            if not isinstance(found, Batch):
                return found
            data.records, batches, known = None, [found], ALL
        appended = partition.append(batches, now_ms, known=known)
    except KafkaError as error:
        return _refused(broker, call, topic, data, partition, error)
    if appended.log_append_time_ms < 0:
        reply: ProduceReply = OneReply(request, call.version, partition, appended)
    else:
        reply = _with_append_time(request, partition, appended)
    broker.replication.flush_queue.woken.append(reply)
    return reply


def _with_append_time(request: Request, partition: Partition, appended: Appended) -> ProduceReply:
    result = response_to_one(partition, appended.base_offset, appended.log_append_time_ms)
    return ProduceReply(
        request, result, [(partition, appended.last_offset + 1, result.responses[0].partition_responses[0])]
    )


def _refused(
    broker: Broker,
    call: Call,
    topic: TopicProduceData,
    data: PartitionProduceData,
    partition: Partition | None,
    error: KafkaError,
) -> Response:
    answer = PartitionProduceResponse(index=data.index)
    if partition is not None:
        answer.log_start_offset = partition.log.start
    refuse_partition(answer, error)
    told = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[answer])
    response = Response(responses=[told])
    if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
        name = topic.name if call.version < 13 else broker.metadata.topic_name(topic.topic_id)
        name_leader(broker, call, response, name, answer)
    return response


def _validate(
    broker: Broker,
    call: Call,
    request: Request,
    data: PartitionProduceData,
    partition: Partition,
    batch: Batch,
    now_ms: int,
) -> Batch | Later:
    """The validated batch or, if validation takes longer, a coroutine that does the rest of the Produce. Raises
    KafkaError."""
    from kpybroker.serving.produce.validation import append_later, first_slices, validating_one

    begin = partial(validating_one, data, batch, partition.topic, partition.log.settings, now_ms)
    begun = begin()
    validated, step = first_slices(begun)
    if validated is None:
        return append_later(broker, call, request, {}, begin, begun, step)
    found = validated[id(data)]
    if isinstance(found, KafkaError):
        raise found
    return found
