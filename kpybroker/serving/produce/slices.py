"""A large Produce, which is appended, written and completed in slices. The event loop serves other requests in between.

Each slice is like a separate request. This does not weaken atomicity, because partitions succeed or fail independently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from kpybroker.call import Call, Reply, response_of
from kpybroker.serving.fair_loop import SLICE
from kpybroker.serving.produce.transactional import produce
from kpybroker.wire.rpc.produce import Request, Response, TopicProduceData

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker


class SlicesReply(Reply):
    """The reply to a large Produce. It is complete when every slice is as durable as `acks` requires, or has timed
    out."""

    __slots__ = ("_answers", "_is_wanted", "_left")

    parallel = True

    def __init__(self, answers: list[Any], *, is_wanted: bool) -> None:
        super().__init__()
        self._answers = answers
        self._is_wanted = is_wanted
        waiting = [each for each in answers if isinstance(each, Reply) and not each.done]
        self._left = len(waiting)
        for each in waiting:
            each.on_ready(self._slice_is_answered)
        if not waiting:
            self._finish()

    def _slice_is_answered(self) -> None:
        self._left -= 1
        if not self._left:
            self._finish()

    def _finish(self) -> None:
        whole = Response()
        for each in self._answers:
            told = each.response if isinstance(each, Reply) else each
            if told is not None:
                _add(whole, told)
        self.complete(whole if self._is_wanted else None)

    def abandon(self) -> None:
        self.discard()
        for each in self._answers:
            if isinstance(each, Reply) and not each.done:
                each.abandon()


async def produce_in_slices(broker: Broker, call: Call, request: Request, slice_bytes: int) -> SlicesReply:
    """Append all slices, each of about `slice_bytes` at most. The returned reply waits for replication, but this
    coroutine does not.

    `timeout_ms` applies to the whole request. If the connection is lost, no reply waits for the appended slices.
    """
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + request.timeout_ms / 1000
    begun: list[Any] = []
    try:
        for topic_data in _in_slices(request.topic_data, slice_bytes):
            some = Request(
                transactional_id=request.transactional_id,
                acks=request.acks,
                timeout_ms=min(max(int((ends_s - loop.time()) * 1000), 0), request.timeout_ms),
                topic_data=topic_data,
            )
            result = produce(broker, call, some)
            reply = await result if isinstance(result, Coroutine) else result
            begun.append(reply)
            if isinstance(reply, Reply) and not reply.parallel:
                await response_of(reply)  # it has scheduled records, which must be written in order
            broker.replication.flush_queue.flush()
            await broker.long_work.turn()
    except asyncio.CancelledError:
        SlicesReply(begun, is_wanted=False).abandon()
        raise
    return SlicesReply(begun, is_wanted=request.acks != 0)


def _in_slices(topics: list[TopicProduceData], slice_bytes: int) -> Iterator[list[TopicProduceData]]:
    """Split the request into slices of SLICE partitions, or of fewer partitions if they reach `slice_bytes`. A topic
    without partitions counts as one partition."""
    piece: list[TopicProduceData] = []
    room, room_bytes = SLICE, slice_bytes
    for topic in topics:
        left = iter(topic.partition_data)
        data = next(left, None)
        is_first = True
        while is_first or data is not None:
            is_first = False
            some = TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=[])
            piece.append(some)
            room -= data is None
            while data is not None and room > 0 and room_bytes > 0:
                some.partition_data.append(data)
                room, room_bytes = room - 1, room_bytes - len(data.records or b"")
                data = next(left, None)
            if room <= 0 or room_bytes <= 0:
                yield piece
                piece, room, room_bytes = [], SLICE, slice_bytes
    if piece:
        yield piece


def _add(whole: Response, told: Response) -> None:
    for topic in told.responses:
        last = whole.responses[-1] if whole.responses else None
        if last is not None and (last.name, last.topic_id) == (topic.name, topic.topic_id):
            last.partition_responses += topic.partition_responses
        else:
            whole.responses.append(topic)
    known = {node.node_id for node in whole.node_endpoints}
    whole.node_endpoints += [node for node in told.node_endpoints if node.node_id not in known]
