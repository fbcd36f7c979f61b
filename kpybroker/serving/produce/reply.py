"""The reply to a Produce, which is complete once the appended records are as durable as `acks` requires."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kpybroker.call import Reply
from kpybroker.errors import ErrorCode, KafkaError
from kpybroker.serving.produce.refusals import refuse_partition
from kpybroker.wire.response_templates import MARK, Acknowledged, produce_form
from kpybroker.wire.rpc.produce import (
    LeaderIdAndEpoch,
    PartitionProduceResponse,
    Request,
    Response,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from kpybroker.replication.partition.partition import Partition
    from kpybroker.storage.log.admission import Appended

ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1
Row = tuple["Partition", int, PartitionProduceResponse | None]
"""A partition, the end of its log after the append, and its part of the response, or None if a template is used."""


class ProduceReply(Reply):
    """Waits for the flush of every partition in `rows` and, with acks=all, for their high watermarks.

    `result` is the response without later errors, or None if there is no response.
    """

    __slots__ = ("_result", "_rows", "_timer", "request")

    parallel = True

    def __init__(self, request: Request, result: Response | None, rows: Sequence[Row]) -> None:
        super().__init__()
        self.request = request
        self._result = result
        self._rows = rows
        self._timer: asyncio.TimerHandle | None = None

    def settle(self) -> None:
        """Called after a flush. Complete the reply, or wait for partitions whose records are not durable enough yet."""
        if self.done:
            return
        left = []
        for row in self._rows:
            partition, end, _ = row
            if partition.log.high_watermark >= end:
                continue
            refusal = partition.refusal
            if refusal is not None:
                self._refuse(row, refusal)
            elif self.request.acks == ACKS_ALL or partition.committable_end < end:
                left.append(row)
        self._rows = left
        if not left:
            self._finish()
        elif self._timer is None:
            timeout_s = max(self.request.timeout_ms, 0) / 1000
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self._time_out)
            for partition, end, _ in left:
                self._wait_at(partition, end)

    def _refuse(self, row: Row, refusal: KafkaError) -> None:
        partition, answer = row[0], self._answer_in(row)
        refuse_partition(answer, refusal)
        if refusal.code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            answer.current_leader = LeaderIdAndEpoch(leader_id=partition.leader_id, leader_epoch=partition.leader_epoch)

    def _answer_in(self, row: Row) -> PartitionProduceResponse:
        """The partition's part of the response."""
        answer = row[2]
        assert answer is not None, "a response that is not a template has all its parts"
        return answer

    def _wait_at(self, partition: Partition, end: int) -> None:
        try:
            if self.request.acks == ACKS_ALL:
                partition.when_committed(end, self)
            else:
                partition.when_written(end, self)
        except KafkaError:  # there are too many waiters, which must not fail the flush that called `settle`
            self._time_out()

    def _time_out(self) -> None:
        if self.done:
            return
        for row in self._rows:
            self._answer_in(row).error_code = ErrorCode.REQUEST_TIMED_OUT
        self._finish()

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.complete(self._result)

    def abandon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.discard()


class OneReply(ProduceReply):
    """The reply to a Produce to one partition. A response without errors is built from the partition's template."""

    __slots__ = ("_appended", "_partition", "_version")

    def __init__(self, request: Request, version: int, partition: Partition, appended: Appended) -> None:
        Reply.__init__(self)  # not ProduceReply's constructor, which is slower: every small Produce creates a OneReply
        self.request = request
        self._result = None
        self._rows = ()
        self._timer = None
        self._version = version
        self._partition = partition
        self._appended = appended

    def settle(self) -> None:
        partition, appended = self._partition, self._appended
        if partition.log.high_watermark > appended.last_offset and self._result is None:
            if self._timer is not None:
                self._timer.cancel()
            self.complete(acknowledged(partition, self._version, appended.base_offset))
            return
        if not self._rows:
            self._rows = ((partition, appended.last_offset + 1, None),)
        super().settle()

    def _answer_in(self, row: Row) -> PartitionProduceResponse:
        self._result = response_to_one(self._partition, self._appended.base_offset)
        return self._result.responses[0].partition_responses[0]

    def _finish(self) -> None:
        if self._result is not None:
            super()._finish()
            return
        if self._timer is not None:
            self._timer.cancel()
        self.complete(acknowledged(self._partition, self._version, self._appended.base_offset))


def response_to_one(partition: Partition, base_offset: int, log_append_time_ms: int = -1) -> Response:
    """The response to a Produce that was appended to one partition."""
    answer = PartitionProduceResponse(
        index=partition.index,
        base_offset=base_offset,
        log_append_time_ms=log_append_time_ms,
        log_start_offset=partition.log.start,
    )
    told = TopicProduceResponse(name=partition.topic, topic_id=partition.topic_id, partition_responses=[answer])
    return Response(responses=[told])


def acknowledged(partition: Partition, version: int, base_offset: int) -> Acknowledged:
    """Like `response_to_one`, but built from the partition's template, which is renewed when the log start changes."""
    template = partition.produce_templates.get(version)
    if template is None or template[0] != partition.log.start:
        template = partition.log.start, produce_form(response_to_one(partition, MARK), version)
        partition.produce_templates[version] = template
    return Acknowledged(template[1], base_offset)
