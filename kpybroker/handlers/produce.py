"""Produce (0): append batches to partitions and answer once they are as safe as `acks` asks.

v9 flexible; v10 names the new leader (KIP-951); v12 transactions of the second kind (KIP-890); v13 topic ids.
The batches stay views of the receive buffer: they are queued here, and written when the read event ends. Those that may
begin a transaction wait before that; see `producing_transactionally`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from kpybroker.call import Call, Reply
from kpybroker.errors import ErrorCode, KafkaError, MalformedFrame
from kpybroker.serving.produce.refusals import ACKS_WITH_REPLY, first_error, name_leader, refuse_partition
from kpybroker.serving.produce.refusals import refuse as refuse
from kpybroker.storage.log.admission import ALL, NOTHING, RECORDS
from kpybroker.wire.records.batch import HEADER_BYTES, TRANSACTIONAL, Batch, split
from kpybroker.wire.response_templates import MARK, Acknowledged, produce_form
from kpybroker.wire.rpc.produce import (
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    Request,
    Response,
    TopicProduceData,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from kpybroker.broker import Broker
    from kpybroker.replication.partition.partition import Partition
    from kpybroker.storage.log.admission import Appended
    from kpybroker.storage.producers.transactions import Verification
    from kpybroker.wire.codec.message import Buffer

Verdicts = Mapping[tuple[str, int], "Verification | KafkaError"]
"""By topic and partition, where a transaction may begin, or why not."""
Opened = dict[int, Batch | KafkaError]
"""By the identity of a PartitionProduceData, the batch to append in its place, or why not."""
Later = Coroutine[Any, Any, Reply | Response | None]
"""The rest of a Produce that has to wait before it can append; None where no answer is wanted."""
TOO_MANY = 2
"""Batches of one partition: one may come, no more are looked at."""
ATTRIBUTES_AT = 22
"""The low byte of a batch's attributes."""
AT_ONCE_BYTES = 8 * 1024 * 1024
"""Batches of several partitions are checked and written in one go up to here: some 15 ms."""
ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
ACKS = (ACKS_ALL, ACKS_LEADER, ACKS_NONE)
_acknowledged = partial(tuple.__new__, Acknowledged)
"""A NamedTuple's own constructor costs three times as much."""
ADMIN_CLIENT = "__admin_client"
"""The client id that may produce to internal topics."""


class ProduceReply(Reply):
    """Waits for the flush, and with acks=all for the high watermark, of every partition appended to."""

    __slots__ = ("_timer", "_waiting", "request", "result")

    parallel = True

    def __init__(self, request: Request, result: Response) -> None:
        super().__init__()
        self.request = request
        self.result = result
        self._waiting: list[tuple[Partition, int, PartitionProduceResponse]] = []
        self._timer: asyncio.TimerHandle | None = None

    def wait_for(self, partition: Partition, end: int, answer: PartitionProduceResponse) -> None:
        self._waiting.append((partition, end, answer))

    def settle(self) -> None:
        """After a flush: complete, or wait on for what has not been reached."""
        for partition, end, _ in self._waiting:
            if partition.log.high_watermark < end or partition.offline is not None:
                self._settle_slowly()
                return
        self._finish()

    def _settle_slowly(self) -> None:
        if self.done:
            return
        left = []
        for item in self._waiting:
            partition, end, answer = item
            if partition.log.high_watermark >= end:
                continue
            refusal = partition.refusal
            if refusal is not None:
                refuse_partition(answer, refusal)
                if refusal.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    answer.current_leader = LeaderIdAndEpoch(
                        leader_id=partition.leader_id, leader_epoch=partition.leader_epoch
                    )
            elif self.request.acks == ACKS_ALL or partition.committable_end < end:
                left.append(item)
        self._waiting = left
        if not left:
            self._finish()
        elif self._timer is None:
            self._start_timer()
            for partition, end, _ in left:
                self._wait_at(partition, end)

    def _wait_at(self, partition: Partition, end: int) -> None:
        try:
            if self.request.acks == ACKS_ALL:
                partition.when_committed(end, self)
            else:
                partition.when_written(end, self)
        except KafkaError:  # there are too many of us: it is the asker's to hear of that, not the flush's
            self._time_out()

    def _start_timer(self) -> None:
        timeout_s = max(self.request.timeout_ms, 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(timeout_s, self._time_out)

    def _time_out(self) -> None:
        for _, _, answer in self._waiting:
            answer.error_code = ErrorCode.REQUEST_TIMED_OUT
        self._finish()

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.complete(self.result if self.request.acks != ACKS_NONE else None)

    def abandon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.done = True


class OneReply(ProduceReply):
    """The reply of a Produce to one partition, prepared: as a rule nothing can go wrong once it is appended."""

    __slots__ = ("_appended", "_partition", "_spelled_out", "_version")

    def __init__(self, request: Request, version: int, partition: Partition, appended: Appended) -> None:
        self.done = False
        self._ready = None
        self.request = request
        self._timer = None
        self._spelled_out = False
        self._version = version
        self._partition = partition
        self._appended = appended

    def settle(self) -> None:
        partition, appended = self._partition, self._appended
        if not self._spelled_out:
            base_offset, last_offset, log_append_time_ms, _ = appended
            if log_append_time_ms < 0:
                if partition.log.high_watermark > last_offset:
                    if self._timer is not None:
                        self._timer.cancel()
                    self.complete(prepared(partition, self._version, base_offset))
                    return
                if partition.refusal is None and not self.done:
                    if self.request.acks == ACKS_LEADER and partition.committable_end > last_offset:
                        self._finish_with(prepared(partition, self._version, base_offset))
                    elif self._timer is None:
                        self._start_timer()
                        self._wait_at(partition, last_offset + 1)
                    return
            self._spell_out()
        super().settle()

    def _finish_with(self, response: Acknowledged) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.complete(response)

    def _time_out(self) -> None:
        if not self._spelled_out:
            self._spell_out()
        super()._time_out()

    def _spell_out(self) -> None:
        """It waited in vain, the write failed, or there is a time to tell: the answer as an object to be changed."""
        self._spelled_out = True
        self.result = _acknowledgement(self._partition, self._appended.base_offset)
        answer = self.result.responses[0].partition_responses[0]
        answer.log_append_time_ms = self._appended.log_append_time_ms
        self._waiting = [(self._partition, self._appended.last_offset + 1, answer)]


def _acknowledgement(partition: Partition, base_offset: int) -> Response:
    answer = PartitionProduceResponse(
        index=partition.index, base_offset=base_offset, log_start_offset=partition.log.start
    )
    told = TopicProduceResponse(name=partition.topic, topic_id=partition.topic_id, partition_responses=[answer])
    return Response(responses=[told])


def prepared(partition: Partition, version: int, base_offset: int) -> Acknowledged:
    """The acknowledgement: the one before, but for the base offset, while the log starts where it did."""
    known_version, start, form = partition.acknowledgement
    if known_version != version or start != partition.log.start:
        form = produce_form(_acknowledgement(partition, MARK), version)
        partition.acknowledgement = version, partition.log.start, form
    return _acknowledged((form, base_offset))


def _handle_one(
    broker: Broker, call: Call, request: Request, topic: TopicProduceData, data: PartitionProduceData
) -> Reply | Response | Later:
    """A Produce to one partition that is to be answered."""
    records, data.records = data.records, None  # a request that is remembered does not keep the bytes
    partition = None
    try:
        name = topic.name if call.version < 13 else broker.topic_name(topic.topic_id)
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        partition, batches = _admit(broker, call, request.acks, name, data.index, records)
        batch = batches[0]
        if batch.attributes & TRANSACTIONAL and (
            request.transactional_id is None
            or not partition.log.producers.has_open(batch.producer_id, batch.producer_epoch)
        ):
            data.records = records
            return _in_transaction(broker, call, request)
        now_ms, known = broker.world.wall_ms(), RECORDS
        if partition.is_internal or partition.log.opens(batch):
            data.records = records
            opened = _open_one(broker, call, request, data, partition, batch, now_ms)
            if not isinstance(opened, Batch):
                return opened
            data.records, batches, known = None, [opened], ALL
        appended = partition.append(batches, now_ms, known=known)
    except KafkaError as error:
        answer = PartitionProduceResponse(index=data.index)
        if partition is not None:
            answer.log_start_offset = partition.log.start
        refuse_partition(answer, error)
        told = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[answer])
        response = Response(responses=[told])
        if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            name_leader(broker, call, response, name, answer)
        return response
    reply = OneReply(request, call.version, partition, appended)
    broker.hosting.woken.append(reply)
    return reply


def _open_one(
    broker: Broker,
    call: Call,
    request: Request,
    data: PartitionProduceData,
    partition: Partition,
    batch: Batch,
    now_ms: int,
) -> Batch | Later:
    """What to append, or all the rest of the Produce where the batch takes longer. Raises KafkaError."""
    from kpybroker.serving.produce.validation import append_later, first_slices, opening_one

    begin = partial(opening_one, data, batch, partition.topic, partition.log.settings, now_ms)
    begun = begin()
    opened, step = first_slices(begun)
    if opened is None:
        return append_later(broker, call, request, {}, begin, begun, step)
    found = opened[id(data)]
    if isinstance(found, KafkaError):
        raise found
    return found


def handle(broker: Broker, call: Call, request: Request) -> Reply | Response | Later:
    """Append what can be appended; refusals are per partition."""
    topics = request.topic_data
    if len(topics) == 1 and request.acks in ACKS_WITH_REPLY:
        partitions = topics[0].partition_data
        if len(partitions) == 1:
            return _handle_one(broker, call, request, topics[0], partitions[0])
    if call.is_long or _size_bytes(topics) > AT_ONCE_BYTES:
        from kpybroker.serving.produce.slices import produce_in_slices

        return produce_in_slices(broker, call, request)
    return append_or_ask(broker, call, request)


def _size_bytes(topics: list[TopicProduceData]) -> int:
    return sum([len(data.records or b"") for topic in topics for data in topic.partition_data])


def append_or_ask(broker: Broker, call: Call, request: Request) -> Reply | Later:
    """Append to all partitions, where transactions begin after the coordinator was asked."""
    if request.acks in ACKS and is_transactional(request):
        return _in_transaction(broker, call, request)
    from kpybroker.serving.produce.validation import open_and_append

    return open_and_append(broker, call, request, {})


def _in_transaction(broker: Broker, call: Call, request: Request) -> Reply | Later:
    from kpybroker.serving.produce.transactional import produce_transactionally

    return produce_transactionally(broker, call, request)


def is_transactional(request: Request) -> bool:
    """Some of the records are of a transaction."""
    return any(
        data.records is not None and len(data.records) >= HEADER_BYTES and data.records[ATTRIBUTES_AT] & TRANSACTIONAL
        for topic in request.topic_data
        for data in topic.partition_data
    )


def append_all(broker: Broker, call: Call, request: Request, verified: Verdicts, opened: Opened) -> Reply:
    """Append to every partition what may be; `verified` says where a transaction may begin, or why not."""
    result = Response()
    reply = ProduceReply(request, result)
    refused = False
    for topic in request.topic_data:
        name = topic.name if call.version < 13 else broker.topic_name(topic.topic_id)
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
                may_begin = verified.get((name, data.index))
                if isinstance(may_begin, KafkaError):
                    raise may_begin
                partition, batches = _admit(broker, call, request.acks, name, data.index, records)
                answer.log_start_offset = partition.log.start
                known, found = NOTHING, opened.get(id(data))
                if isinstance(found, KafkaError):
                    raise found
                if found is not None:
                    known, batches = ALL, [found]
                appended = partition.append(batches, broker.world.wall_ms(), verified=may_begin, known=known)
                answer.base_offset = appended.base_offset
                answer.log_append_time_ms = appended.log_append_time_ms
                reply.wait_for(partition, appended.last_offset + 1, answer)
            except KafkaError as error:
                refuse_partition(answer, error)
                refused = True
                if error.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    name_leader(broker, call, result, name, answer)
    if refused and request.acks == ACKS_NONE:
        raise MalformedFrame(f"a produce with acks=0 was refused: {first_error(result)}")
    broker.hosting.woken.append(reply)
    return reply


def _admit(
    broker: Broker, call: Call, acks: int, topic: str, index: int, records: Buffer | None
) -> tuple[Partition, list[Batch]]:
    """Where the records go, and the batches they are. Raises KafkaError."""
    partition = broker.hosting.leads(topic, index)
    if records is None:
        raise KafkaError(ErrorCode.INVALID_RECORD, "no records were sent")
    if partition.is_internal and call.client_id != ADMIN_CLIENT:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"clients do not produce to {topic}")
    if acks == ACKS_ALL:
        partition.require_in_sync(partition.log.settings.min_insync_replicas)
    return partition, split(records, TOO_MANY)
