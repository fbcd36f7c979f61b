"""The reply to a Produce: complete once the appended records are as safe as `acks` asks."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

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

ACKS_NONE, ACKS_LEADER, ACKS_ALL = 0, 1, -1
Row = tuple["Partition", int, PartitionProduceResponse | None]
"""A partition that was appended to, the end of its log after that, and its part of the response; None if there is none
yet."""
Acknowledgement = tuple["Partition", int, int]
"""A partition, the version of the response, and the base offset."""
_acknowledged = partial(tuple.__new__, Acknowledged)
"""A NamedTuple's own constructor costs three times as much."""


class ProduceReply(Reply):
    """Waits for the flush, and with acks=all for the high watermark, of every partition in `rows`.

    result: the response if all goes well; None if none is wanted. A Produce to one partition gives `one` instead: then
    the response comes from the partition's template, unless it has to say more than success.
    """

    __slots__ = ("_one", "_result", "_rows", "_timer", "request")

    parallel = True

    def __init__(
        self, request: Request, result: Response | None, rows: list[Row], one: Acknowledgement | None = None
    ) -> None:
        super().__init__()
        self.request = request
        self._result = result
        self._rows = rows
        self._one = one
        self._timer: asyncio.TimerHandle | None = None

    def settle(self) -> None:
        """After a flush: complete, or wait for the partitions whose records are not safe yet."""
        for partition, end, _ in self._rows:
            if partition.log.high_watermark < end or partition.offline is not None:
                self._settle_slowly()
                return
        self._finish()

    def _settle_slowly(self) -> None:
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
        """The partition's part of the response: a template only says success."""
        answer = row[2]
        if answer is None:
            assert self._one is not None
            partition, _, base_offset = self._one
            self._one, self._result = None, response_to_one(partition, base_offset)
            answer = self._result.responses[0].partition_responses[0]
        return answer

    def _wait_at(self, partition: Partition, end: int) -> None:
        try:
            if self.request.acks == ACKS_ALL:
                partition.when_committed(end, self)
            else:
                partition.when_written(end, self)
        except KafkaError:  # too many wait already, which must not fail the flush that settles this reply
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
        self.complete(self._result if self._one is None else acknowledged(*self._one))

    def abandon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.done = True


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
    """As `response_to_one`, from the partition's template, which serves as long as the log start does not move."""
    start, form = partition.produce_templates.get(version, (-1, None))
    if start != partition.log.start:
        form = produce_form(response_to_one(partition, MARK), version)
        partition.produce_templates[version] = partition.log.start, form
    return _acknowledged((form, base_offset))
