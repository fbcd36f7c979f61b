"""The Fetch of very many partitions, which is processed over several turns of the event loop so that other requests do
not wait for it.

After an append, the Fetch reads its partitions again after a pause. The pause grows with the number of partitions, so
that the reads take at most a fifth of the time even if there are many appends. `max_wait_ms` applies as for any other
Fetch. However, if too many rows are waiting already (`long_work.PARKED_MAX`), the response is sent at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from kpybroker.call import Call, Reply
from kpybroker.replication.partition.sessions import SessionKey, Want
from kpybroker.serving.fair_loop import SLICE, Turns, slices
from kpybroker.serving.fetch.consumer import ConsumerView
from kpybroker.serving.fetch.reply import FetchReply
from kpybroker.serving.fetch.session import name_wants, resume_with
from kpybroker.wire.api import by_key
from kpybroker.wire.codec.codec import build_chunks_in_turns
from kpybroker.wire.codec.message import Buffer
from kpybroker.wire.response_templates import FetchedMany
from kpybroker.wire.rpc.fetch import FetchableTopicResponse, PartitionData, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.replication.partition.sessions import Session

AGAIN_S_A_PARTITION = 20e-6
"""The pause before the partitions are read again, per partition. It is about four times the time of reading one."""


Begin = Callable[["Broker", Call, Request, "Session | None", list[Want]], "ManyFetchReply"]


class LookedAt(NamedTuple):
    """The result of reading one partition: its row; how many of its bytes count for `min_bytes`; and whether the
    response should be sent even if it has fewer."""

    row: PartitionData
    size_bytes: int
    is_urgent: bool


class ManyFetchReply(FetchReply):
    """Reads its partitions in a task. It ignores the consumer's rack, so that the leader serves the consumer."""

    __slots__ = ("_is_behind", "_must_answer", "_parked")

    def __init__(self, view: ConsumerView) -> None:
        super().__init__(view)
        self._must_answer = False
        self._is_behind = False
        """Whether there was an append since the partitions were last read."""
        self._parked = 0
        """The number of rows of this reply that `LongWork` counts as waiting."""

    def begin(self) -> ManyFetchReply:
        """Start to read the partitions, and to wait."""
        self._look(final=self.view.request.max_wait_ms <= 0 or self.view.is_empty)
        self._start_timer()
        self.view.watch(self)
        return self

    async def first_look(self) -> None:
        """Wait until the partitions have been read once, after which the reply is complete or waits for records. Raises
        the exceptions of that read."""
        if self._task is not None:
            await self._task

    def _look(self, *, final: bool) -> None:
        self._must_answer |= final
        if self._task is None and not self.done:
            self._start_task(self._look_in_turns())

    def settle(self) -> None:
        self._is_behind = True
        if self._again is None and self._task is None and not self.done:
            self._call_again(len(self.view.wants) * AGAIN_S_A_PARTITION)

    def _look_again(self) -> None:
        self._look(final=False)

    def _time_out(self) -> None:
        self._look(final=True)

    def _release(self) -> None:
        super()._release()
        self.view.broker.long_work.unpark(self._parked)
        self._parked = 0

    async def _look_in_turns(self) -> None:
        while True:
            must_answer = self._must_answer
            rows, is_enough = await self._look_at_all()
            if must_answer or is_enough or not self._may_wait():
                self._finish(await self._answer(rows))
                return
            if not self.view.is_watching:
                self.view.watch(self)
            if not self._must_answer:
                self._end_task()
                if self._is_behind:
                    self.settle()
                return

    def _may_wait(self) -> bool:
        if not self._parked and not self.view.broker.long_work.park(len(self.view.wants)):
            return False
        self._parked = len(self.view.wants)
        return True

    async def _look_at_all(self) -> tuple[list[tuple[Want, PartitionData]], bool]:
        """The rows of all partitions, and whether they contain enough for a response."""
        view = self.view
        self._is_behind = False
        limit_bytes = min(view.request.max_bytes, view.broker.config.fetch_max_bytes)
        total_bytes, has_news = 0, False
        rows = []
        view.forget_leaders()
        async for want in Turns(view.broker.long_work).through(view.wants):
            row, size_bytes, is_urgent = await self._look_at(want, limit_bytes - total_bytes, is_first=total_bytes == 0)
            rows.append((want, row))
            has_news = has_news or is_urgent
            total_bytes += size_bytes
        view.cold.clear()
        return rows, has_news or total_bytes >= view.request.min_bytes

    async def _look_at(self, want: Want, room_bytes: int, *, is_first: bool) -> LookedAt:
        view = self.view
        row, cold, is_urgent = view.look(want, room_bytes, is_first=is_first)
        if cold is not None:
            await self._read_cold(want, cold, want.max_bytes)
            row, _, is_urgent = view.look(want, room_bytes, is_first=is_first)
        return LookedAt(row, len(row.records or b""), is_urgent)

    async def _answer(self, rows: list[tuple[Want, PartitionData]]) -> Any:
        view, work, version = self.view, self.view.broker.long_work, self.view.call.version
        whole = Response(session_id=0 if view.session is None else view.session.id, responses=[])
        topics: dict[tuple[str, bytes], FetchableTopicResponse] = {}
        for some in slices(rows):
            part = view.respond(list(some))
            for topic in part.responses:
                known = topics.setdefault((topic.topic, topic.topic_id), topic)
                if known is not topic:
                    known.partitions += topic.partitions
            whole.node_endpoints = part.node_endpoints
            await work.turn()
        whole.responses = list(topics.values())
        if len(topics) <= SLICE and sum(len(topic.partitions) for topic in whole.responses) <= SLICE:
            return whole
        body: list[Buffer] = list(await work.through(build_chunks_in_turns(whole, version)))
        return FetchedMany(whole.session_id, body, is_flexible=version >= by_key[view.call.api_key].flexible)


def begin_many(
    broker: Broker, call: Call, request: Request, session: Session | None, wants: list[Want]
) -> ManyFetchReply:
    """The reply to the Fetch of a consumer, which has begun to read its partitions."""
    return ManyFetchReply(ConsumerView(broker, call, request, session, wants)).begin()


async def fetch_in_turns(broker: Broker, call: Call, request: Request, by_id: bool, begin: Begin) -> Reply:
    """Process a Fetch of very many partitions, whose reply `begin` makes. Raises the same KafkaErrors as
    `session.resume`."""
    wants: OrderedDict[SessionKey, Want] = OrderedDict()
    turns = Turns(broker.long_work)
    async for topic in turns.through(request.topics):
        for some in slices(topic.partitions):
            name_wants(wants, topic, some, by_id, Want)
            turns.add(len(some))
            if len(some) == SLICE:
                await turns.turn()
    session, named = resume_with(broker, request, by_id, wants, is_replica=False)
    wanted = named if session is None else list(session.wants.values())
    request.topics = []  # no longer needed, and a waiting Fetch would keep them in memory
    reply = begin(broker, call, request, session, wanted)
    try:
        await reply.first_look()
    except asyncio.CancelledError:
        reply.abandon()
        raise
    return reply
