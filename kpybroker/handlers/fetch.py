"""Fetch (1): batches from an offset on, as soon as there are `min_bytes` of them or `max_wait_ms` is over.

v7 incremental sessions (KIP-227); v9 leader epochs (KIP-320); v12 flexible; v13 topic ids (KIP-516).
Whole batches are returned, from the one that contains the offset; never past the high watermark, or past the last
stable offset for read_committed. The first batch comes even if it is larger than the limits (KIP-74).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from kpybroker.call import CONTROLLER, Call, Reply
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.replication.partition.sessions import FINAL_EPOCH, INITIAL_EPOCH, Session, Want
from kpybroker.serving.fetch.metadata_log import fetch_metadata, is_of_the_quorum
from kpybroker.serving.fetch.session import resolve
from kpybroker.wire.response_templates import Fetched, fetch_form
from kpybroker.wire.rpc.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    Request,
    Response,
)

if TYPE_CHECKING:
    from kpybroker.broker import Broker
    from kpybroker.metadata.whereabouts import Leader
    from kpybroker.replication.partition.partition import Partition
    from kpybroker.world import Buffer

READ_COMMITTED = 1
FOLLOWERS_SERVE = 11
"""Who asks with this version knows that any replica may answer (KIP-392)."""
WANTS_AT_ONCE = 1000
"""A fetch of more partitions looks at them in turns: this many take some five milliseconds."""
ELSEWHERE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
_EMPTY = b""
_fetched = partial(tuple.__new__, Fetched)
NOT_THERE = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""Refused before the log is asked; Kafka then sends an empty list of aborted transactions, and null after that."""


class FetchReply(Reply):
    """A fetch that waits for bytes to arrive, for its time to end, or for a cold read."""

    __slots__ = ("_broker", "_cold", "_leaders", "_session", "_task", "_timer", "_watched", "call", "request", "wants")

    def __init__(
        self, broker: Broker, call: Call, request: Request, session: Session | None, wants: list[Want]
    ) -> None:
        super().__init__()
        self.request = request
        self.call = call
        self._broker = broker
        self._session = session
        self.wants = wants
        self._watched: list[Partition] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._cold: dict[Want, Buffer] = {}
        self._leaders: dict[int, Leader] = {}

    def try_now(self, *, final: bool) -> Response | None:
        """The response if there is enough to answer with, or if there must be one; None to wait on."""
        limit_bytes = min(self.request.max_bytes, self._broker.quotas.fetch_max_bytes)
        total_bytes = 0
        has_error = False
        rows: list[tuple[Want, PartitionData]] = []
        for want in self.wants:
            row, cold = self._look(want, limit_bytes - total_bytes, is_first=total_bytes == 0)
            if cold is not None:
                self._read_cold(want, cold)
                return None
            rows.append((want, row))
            if row.error_code:
                has_error = True
            elif row.records:
                total_bytes += len(row.records)
        if not (final or has_error or total_bytes >= min(self.request.min_bytes, limit_bytes)):
            return None
        self._cold.clear()
        return self._respond(rows)

    def _look(self, want: Want, room_bytes: int, *, is_first: bool) -> tuple[PartitionData, Partition | None]:
        """The row of one partition, or the partition whose bytes must be brought from the disk first."""
        row = PartitionData(partition_index=want.index, high_watermark=-1, records=_EMPTY)
        partition = want.partition
        try:
            if partition is None or partition.offline is not None or partition.leader_id != self._broker.node_id:
                partition = want.partition = self._find(want)
            if want.leader_epoch != -1:
                partition.check_epoch(want.leader_epoch)
            storage = partition.log
            committed = self.request.isolation_level == READ_COMMITTED
            row.high_watermark = storage.high_watermark
            row.last_stable_offset = storage.last_stable
            row.log_start_offset = storage.start
            row.aborted_transactions = [] if committed else None
            upper = storage.last_stable if committed else storage.high_watermark
            offset = want.fetch_offset
            if not storage.start <= offset <= storage.end:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            if offset >= upper or (room_bytes <= 0 and not is_first):
                return row, None
            records = self._cold.get(want)
            if records is None:
                size_bytes = max(min(want.max_bytes, room_bytes), 0)
                records = storage.read(offset, size_bytes, upper=upper, min_one=is_first)
                if records is None:
                    return row, partition
            row.records = records if isinstance(records, bytes) else memoryview(records)
            if committed and storage.segments.any_aborted:
                row.aborted_transactions = [
                    AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                    for aborted in storage.aborted_within(offset, records)
                ]
        except Damage as damage:
            return _refused(want, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(damage))), None
        except KafkaError as refusal:
            return self._refuse(want, refusal), None
        return row, None

    def _refuse(self, want: Want, refusal: KafkaError) -> PartitionData:
        """The row that says so; who leads instead, as far as this broker knows (KIP-951)."""
        want.partition = None
        row = _refused(want, refusal)
        if refusal.code in ELSEWHERE:
            topic = want.topic or self._broker.topic_name(want.topic_id) or ""
            leader = self._broker.leader_of(topic, want.index, self.call.listener)
            if leader is not None:
                row.current_leader = LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=leader.epoch)
                self._leaders[leader.node_id] = leader
        return row

    def _find(self, want: Want) -> Partition:
        topic = want.topic
        if topic is None:
            topic = self._broker.topic_name(want.topic_id)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return self._at(topic, want.index)

    def _at(self, topic: str, index: int) -> Partition:
        hosting = self._broker.hosting
        return hosting.replica(topic, index) if self.call.version >= FOLLOWERS_SERVE else hosting.leads(topic, index)

    def _respond(self, rows: list[tuple[Want, PartitionData]]) -> Response:
        session = self._session
        is_incremental = session is not None and self.request.session_epoch > INITIAL_EPOCH
        topics: dict[str | bytes, FetchableTopicResponse] = {}
        for want, row in rows:
            if session is not None:
                told = (row.high_watermark, row.log_start_offset)
                is_news = (
                    bool(row.records)
                    or row.error_code
                    or row.diverging_epoch is not None
                    or told != (want.told_high_watermark, want.told_log_start)
                    or row.preferred_read_replica >= 0
                )
                want.told_high_watermark, want.told_log_start = told
                if is_incremental and not is_news:
                    continue
                if row.error_code:
                    want.told_high_watermark = -1
                elif row.records:
                    session.had_its_turn((want.topic if want.topic is not None else want.topic_id, want.index))
            key = want.topic if want.topic is not None else want.topic_id
            topic = topics.get(key)
            if topic is None:
                topic = topics[key] = FetchableTopicResponse(
                    topic=want.topic or "", topic_id=want.topic_id, partitions=[]
                )
            topic.partitions.append(row)
        nodes = [
            NodeEndpoint(node_id=leader.node_id, host=leader.host, port=leader.port, rack=leader.rack)
            for leader in self._leaders.values()
            if leader.host
        ]
        return Response(
            session_id=session.id if session is not None else 0, responses=list(topics.values()), node_endpoints=nodes
        )

    # ---- waiting

    def park(self) -> None:
        """Wait for bytes or for max_wait_ms."""
        self._start_timer()
        for want in self.wants:
            if want.partition is not None:
                self._watch(want.partition)

    def _start_timer(self) -> None:
        if self._timer is None:
            wait_s = max(self.request.max_wait_ms, 0) / 1000
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._time_out)

    def _watch(self, partition: Partition) -> None:
        partition.fetches[self] = None
        self._watched.append(partition)

    def settle(self) -> None:
        """Something was appended to a watched partition."""
        if not self.done and self._task is None:
            response = self.try_now(final=False)
            if response is not None:
                self._finish(response)

    def give_way(self) -> None:
        if self._task is None:
            self._time_out()

    def _time_out(self) -> None:
        if self.done or self._task is not None:
            return
        response = self.try_now(final=True)
        if response is not None:
            self._finish(response)

    def _finish(self, response: Response) -> None:
        self._release()
        self.complete(response)

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for partition in self._watched:
            partition.fetches.pop(self, None)
        self._watched = []

    def abandon(self) -> None:
        self.done = True
        self._release()
        if self._task is not None:
            self._task.cancel()

    # ---- cold reads

    def _upper(self, partition: Partition) -> int:
        """How far may be read."""
        storage = partition.log
        return storage.last_stable if self.request.isolation_level == READ_COMMITTED else storage.high_watermark

    def _read_cold(self, want: Want, partition: Partition) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._bring(want, partition))

    async def _bring(self, want: Want, partition: Partition) -> None:
        """Read off the loop what is not in the page cache, then look again; at least this partition is answered."""
        storage, upper = partition.log, self._upper(partition)
        size_bytes = max(min(want.max_bytes, self.request.max_bytes, self._broker.quotas.fetch_max_bytes), 0)
        try:
            self._cold[want] = await storage.read_cold(want.fetch_offset, size_bytes, upper=upper, min_one=True)
        except (KafkaError, Damage):
            want.partition = None
        self._task = None
        self._time_out()


def handle(
    broker: Broker, call: Call, request: Request
) -> Response | Fetched | Reply | Coroutine[Any, Any, Reply | Response]:
    """Answer at once where possible, else give a reply that waits."""
    by_id = call.version >= 13
    replica_id = request.replica_id if call.version < 15 else (request.replica_state or _NO_REPLICA).replica_id
    if call.side == CONTROLLER:
        if replica_id < 0 or not is_of_the_quorum(request):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "at a controller's listener replicas fetch the metadata, only")
        return fetch_metadata(broker, call, request, replica_id)
    if replica_id >= 0:
        from kpybroker.serving.fetch.replica import fetch_replica

        return fetch_replica(broker, call, request, replica_id)
    if call.is_long:
        from kpybroker.serving.fetch.many import fetch_in_turns

        return fetch_in_turns(broker, call, request, by_id)
    if request.rack_id and broker.config.is_rack_aware:
        from kpybroker.serving.fetch.nearby import fetch_nearby

        return fetch_nearby(broker, call, request, by_id)
    if request.session_epoch == FINAL_EPOCH and not request.session_id and len(request.topics) == 1:
        fetched = _at_once(broker, call, request)
        if fetched is not None:
            return fetched
    session, wants = resolve(broker, request, by_id)
    if len(wants) > WANTS_AT_ONCE:
        from kpybroker.serving.fetch.many import ManyFetchReply

        return begin(ManyFetchReply(broker, call, request, session, wants))
    return begin(FetchReply(broker, call, request, session, wants))


def begin(reply: FetchReply) -> Response | Reply:
    """What can be said at once, or the reply that waits."""
    response = reply.try_now(final=reply.request.max_wait_ms <= 0 or not reply.wants)
    if response is not None:
        return response
    reply.park()
    return reply


def _at_once(broker: Broker, call: Call, request: Request) -> Fetched | None:
    """The answer to a fetch of one partition without a session, if its bytes are there; else None: the long way."""
    topic = request.topics[0]
    if len(topic.partitions) != 1:
        return None
    asked = topic.partitions[0]
    try:
        if call.version < 13:
            partition = broker.hosting.leads(topic.topic, asked.partition)
        else:
            found = broker.hosting.leads_id(topic.topic_id, asked.partition)
            if found is None:
                return None
            partition = found
        if asked.current_leader_epoch != -1:
            partition.check_epoch(asked.current_leader_epoch)
        storage = partition.log
        committed = request.isolation_level == READ_COMMITTED
        upper = storage.last_stable if committed else storage.high_watermark
        if asked.fetch_offset >= upper or (committed and storage.segments.any_aborted):
            return None
        size_bytes = min(asked.partition_max_bytes, request.max_bytes, broker.quotas.fetch_max_bytes)
        if size_bytes < 0:
            return None
        records = storage.read(asked.fetch_offset, size_bytes, upper=upper, min_one=True)
    except (KafkaError, Damage):
        return None
    if not records or len(records) < request.min_bytes:
        return None
    forms, key = partition.fetch_forms, call.version << 1 | committed
    if key not in forms:
        forms[key] = fetch_form(partition.topic, partition.topic_id, partition.index, call.version, committed=committed)
    form = forms[key]
    if form is None:
        return None
    return _fetched((form, 0, storage.high_watermark, storage.last_stable, storage.start, records))


def refuse(request: Request, refusal: KafkaError) -> Response:
    """The whole fetch is refused: a session that is not as the client thinks."""
    return Response(error_code=refusal.code, responses=[])


def _refused(want: Want, refusal: KafkaError) -> PartitionData:
    return PartitionData(
        partition_index=want.index,
        error_code=refusal.code,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        aborted_transactions=[] if refusal.code in NOT_THERE else None,
        records=_EMPTY,
    )


class _NoReplica:
    replica_id = -1


_NO_REPLICA = _NoReplica()
