"""The Fetch of very many partitions: looked at, answered and encoded in turns, so that others do not wait for it.

When something is appended it looks again after a while that grows with the number of partitions: however busy they are,
it takes a fifth of the time at most. Its `max_wait_ms` holds as for any other fetch, unless too much waits already
(`long_work.PARKED_MAX`): then it is answered at once, with what there is.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from kpybroker.call import Call, Reply
from kpybroker.errors import Damage, KafkaError
from kpybroker.handlers.fetch import FetchReply, begin
from kpybroker.replication.partition.sessions import Session, Want, Wanted
from kpybroker.serving.fair_loop import SLICE, Turns, slices
from kpybroker.serving.fetch.session import name_wants, resume_with
from kpybroker.wire.api import by_key
from kpybroker.wire.codec.message import Buffer, build_chunks_in_turns
from kpybroker.wire.response_templates import FetchedMany
from kpybroker.wire.rpc.fetch import FetchableTopicResponse, PartitionData, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker import Broker
    from kpybroker.replication.partition.partition import Partition

AGAIN_S_A_PARTITION = 20e-6
"""How long it waits for more, for each partition: some four times what a look at it takes."""


class ManyFetchReply(FetchReply):
    """Looks at its partitions in a task, one look at a time. A rack is not asked for: the leader answers."""

    __slots__ = ("_again", "_must_answer", "_parked")

    def __init__(
        self, broker: Broker, call: Call, request: Request, session: Session | None, wants: list[Want]
    ) -> None:
        super().__init__(broker, call, request, session, wants)
        self._again: asyncio.TimerHandle | None = None
        self._must_answer = False
        self._parked = 0
        """Rows that are counted among those that wait."""

    def try_now(self, *, final: bool) -> Response | None:
        """Begin to look; the answer comes later."""
        self._must_answer |= final
        if self._task is None and not self.done:
            self._task = asyncio.get_running_loop().create_task(self._look_in_turns())
        return None

    async def first_look(self) -> None:
        """Wait until it is answered, or waits for records. Raises what a look raises."""
        if self._task is not None:
            await self._task

    def settle(self) -> None:
        if self._again is None and self._task is None and not self.done:
            wait_s = len(self.wants) * AGAIN_S_A_PARTITION
            self._again = asyncio.get_running_loop().call_later(wait_s, self._look_again)

    def _look_again(self) -> None:
        self._again = None
        self.try_now(final=False)

    def _time_out(self) -> None:
        self.try_now(final=True)

    def _release(self) -> None:
        super()._release()
        self._broker.long_work.unpark(self._parked)
        self._parked = 0
        if self._again is not None:
            self._again.cancel()

    async def _look_in_turns(self) -> None:
        while True:
            must_answer = self._must_answer
            rows, is_enough = await self._look_at_all()
            if must_answer or is_enough or not self._may_wait():
                self._finish(await self._answer(rows))
                return
            if not self._watched:
                for want in self.wants:
                    if want.partition is not None:
                        self._watch(want.partition)
            if not self._must_answer:
                self._task = None
                return

    def _may_wait(self) -> bool:
        if not self._parked and not self._broker.long_work.park(len(self.wants)):
            return False
        self._parked = len(self.wants)
        return True

    async def _look_at_all(self) -> tuple[list[tuple[Want, PartitionData]], bool]:
        """All rows, and whether they are worth an answer."""
        limit_bytes = min(self.request.max_bytes, self._broker.config.fetch_max_bytes)
        total_bytes, has_error = 0, False
        rows = []
        self._leaders.clear()
        async for want in Turns(self._broker.long_work).through(self.wants):
            row, cold = self._look(want, limit_bytes - total_bytes, is_first=total_bytes == 0)
            if cold is not None:
                await self._read(want, cold)
                row, _ = self._look(want, limit_bytes - total_bytes, is_first=total_bytes == 0)
            rows.append((want, row))
            has_error = has_error or bool(row.error_code)
            total_bytes += len(row.records or b"")
        self._cold.clear()
        return rows, has_error or total_bytes >= self.request.min_bytes

    async def _read(self, want: Want, partition: Partition) -> None:
        storage, upper = partition.log, self._upper(partition)
        try:
            self._cold[want] = await storage.read_cold(want.fetch_offset, want.max_bytes, upper=upper, min_one=True)
        except (KafkaError, Damage):
            want.partition = None

    async def _answer(self, rows: list[tuple[Want, PartitionData]]) -> Any:
        work, version = self._broker.long_work, self.call.version
        whole = Response(session_id=0 if self._session is None else self._session.id, responses=[])
        topics: dict[tuple[str, bytes], FetchableTopicResponse] = {}
        for some in slices(rows):
            part = self._respond(list(some))
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
        return FetchedMany(whole.session_id, body, version >= by_key[self.call.api_key].flexible)


async def fetch_in_turns(broker: Broker, call: Call, request: Request, by_id: bool) -> Reply:
    """A Fetch that names very many partitions. Raises KafkaError as `fetch.resume`."""
    wants: OrderedDict[Wanted, Want] = OrderedDict()
    turns = Turns(broker.long_work)
    async for topic in turns.through(request.topics):
        for some in slices(topic.partitions):
            name_wants(wants, topic, some, by_id, Want)
            turns.add(len(some))
            if len(some) == SLICE:
                await turns.turn()
    session, named = resume_with(broker, request, by_id, wants, is_replica=False)
    wanted = named if session is None else list(session.wants.values())
    request.topics = []  # they are looked at no more, and a parked Fetch would keep them
    reply = ManyFetchReply(broker, call, request, session, wanted)
    begin(reply)
    try:
        await reply.first_look()
    except asyncio.CancelledError:
        reply.abandon()
        raise
    return reply
