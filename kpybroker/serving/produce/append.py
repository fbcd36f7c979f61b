"""Appends the batches of a Produce to the logs of their partitions. Each partition may refuse its batch.

The batches remain views of the receive buffer: they are queued here, and written when the read event ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kpybroker.call import Call
from kpybroker.errors import ErrorCode, KafkaError, MalformedFrame
from kpybroker.scheduled.division import DividedBatch
from kpybroker.serving.produce.refusals import first_error, name_leader, refuse_partition
from kpybroker.serving.produce.reply import ACKS_ALL, ACKS_LEADER, ACKS_NONE, ProduceReply, Row
from kpybroker.serving.produce.rights import delivers, may_write
from kpybroker.serving.produce.scheduling import EntryRow, ScheduledReply, check_scheduling
from kpybroker.storage.log.admission import ALL, NOTHING
from kpybroker.storage.producers.producers import DELIVERY_PRODUCER
from kpybroker.topics import TopicPartition, scheduled_topic_of
from kpybroker.wire.records.batch import Batch, split
from kpybroker.wire.rpc.produce import PartitionProduceResponse, Request, Response, TopicProduceResponse

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.replication.partition.partition import Partition
    from kpybroker.storage.producers.transactions import Verification
    from kpybroker.wire.codec.message import Buffer

Verdicts = dict[TopicPartition, "Verification | KafkaError"]
"""By topic and partition: the coordinator's permission to begin a transaction there, or the error."""
Validated = dict[int, Batch | KafkaError]
"""By the id() of a PartitionProduceData: the validated batch to append in its place, or the error."""
ACKS: Final = (ACKS_ALL, ACKS_LEADER, ACKS_NONE)
BATCHES_MAX: Final = 2
"""How many batches of one partition to parse. Only one is allowed, so a second one is enough to refuse the request."""
ADMIN_CLIENT: Final = "__admin_client"
"""The client id that may produce to internal topics."""


def admit(
    broker: Broker, call: Call, acks: int, topic: str, index: int, records: Buffer | None
) -> tuple[Partition, list[Batch]]:
    """The partition to append to, and the batches in `records`. Raises KafkaError."""
    if broker.metadata.authorizer is not None and not may_write(broker, call, topic):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    partition = broker.replication.hosting.leads(topic, index)
    if records is None:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the request has no records")
    if partition.is_internal and call.client_id != ADMIN_CLIENT:
        if scheduled_topic_of(topic) is None or not delivers(broker, call):
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"clients may not produce to {topic}")
        broker.coordinators.delivery_logs.require_room(topic, index)
    if acks == ACKS_ALL:
        partition.require_in_sync(partition.log.settings.min_insync_replicas)
    batches = split(records, BATCHES_MAX)
    if batches[0].producer_id == DELIVERY_PRODUCER and not delivers(broker, call):
        raise KafkaError(ErrorCode.INVALID_RECORD, f"producer id {DELIVERY_PRODUCER} is reserved for scheduled records")
    if broker.metadata.image.retirements and batches[0].producer_id != DELIVERY_PRODUCER:
        broker.metadata.admit_late(topic, index, call)
    return partition, batches


def append_all(broker: Broker, call: Call, request: Request, verdicts: Verdicts, validated: Validated) -> ProduceReply:
    """Append to every partition that accepts its batch. With acks=0, raise MalformedFrame if any partition refuses."""
    result = Response()
    rows: list[Row] = []
    entries: list[EntryRow] = []
    refused = False
    for topic in request.topic_data:
        name = topic.name if call.version < 13 else broker.metadata.topic_name(topic.topic_id)
        told = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id)
        result.responses.append(told)
        for data in topic.partition_data:
            records, data.records = data.records, None
            answer = PartitionProduceResponse(index=data.index)
            told.partition_responses.append(answer)
            try:
                if request.acks not in ACKS:
                    raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS)
                if name is None:
                    raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
                may_begin = verdicts.get((name, data.index))
                if isinstance(may_begin, KafkaError):
                    raise may_begin
                partition, batches = admit(broker, call, request.acks, name, data.index, records)
                answer.log_start_offset = partition.log.start
                known, found = NOTHING, validated.get(id(data))
                if isinstance(found, KafkaError):
                    raise found
                if found is not None:
                    known, batches = ALL, [found]
                if partition.log.settings.delivery_scheduled:
                    check_scheduling(broker, partition, batches[0])
                appended = partition.append(batches, broker.world.wall_ms(), verified=may_begin, known=known)
                answer.base_offset = appended.base_offset
                answer.log_append_time_ms = appended.log_append_time_ms
                rows.append((partition, appended.last_offset + 1, answer))
                if type(found) is DividedBatch and (appended.duplicate or found.scheduled()):
                    broker.coordinators.delivery_logs.missing.add(partition.topic_id, partition.index, found)
                    entries.append(EntryRow(partition, found, appended, answer))
            except KafkaError as error:
                refuse_partition(answer, error)
                refused = True
                if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    name_leader(broker, call, result, name, answer)
    if refused and request.acks == ACKS_NONE:
        raise MalformedFrame(f"a produce with acks=0 was refused: {first_error(result)}")
    told_result = result if request.acks != ACKS_NONE else None
    reply = ProduceReply(request, told_result, rows)
    if entries:
        reply = ScheduledReply(broker, request, told_result, rows, entries)
    broker.replication.flush_queue.woken.append(reply)
    return reply
