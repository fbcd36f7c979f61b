"""The Fetch by followers: `handlers/fetch.py` hands it over.

A follower reads up to the end of the log, and tells by its offset that it has all below: that moves the high watermark
and brings it into the in-sync set. Of a session only those partitions are looked at that the fetch names or that have
news, and all of them a few times a second, which counts a follower at rest as one that has everything. v12 carries the
epoch of its last record: where the histories differ it is told where they parted (KIP-595). v15 its broker's epoch
(KIP-903).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kpybroker.call import Call, Reply
from kpybroker.errors import Damage, ErrorCode, KafkaError, MalformedFrame
from kpybroker.handlers.fetch import FetchReply
from kpybroker.replication.follower.fetch_session import NAMED_MAX
from kpybroker.replication.partition.followers import UNKNOWN, Follower
from kpybroker.replication.partition.sessions import INITIAL_EPOCH, News, ReplicaWant, Session, Want
from kpybroker.serving.fetch.session import resume
from kpybroker.wire.rpc.fetch import EpochEndOffset, PartitionData, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker import Broker
    from kpybroker.replication.partition.partition import Partition

NO_EPOCH = -1
NAMED_LIMIT = 2 * NAMED_MAX
"""The partitions that one Fetch may name: they are looked at in one go."""
COUNT_ALL_MS = 250
"""How often a session is looked at as a whole: well below any replica.lag.time.max.ms."""


class ReplicaFetchReply(FetchReply):
    """A follower's fetch that waits for something to be appended, or for its time to end."""

    __slots__ = (
        "_again",
        "_even",
        "_is_rack_aware",
        "_is_slowed",
        "_is_stale",
        "_must_answer",
        "_news",
        "_replica_id",
        "_served",
        "_slowed_bytes",
        "_throttle",
    )

    def __init__(
        self,
        broker: Broker,
        call: Call,
        request: Request,
        session: Session | None,
        news: News,
        replica_id: int,
        broker_epoch: int,
    ) -> None:
        super().__init__(broker, call, request, session, [])
        self._news = news
        self._replica_id = replica_id
        self._is_stale = UNKNOWN < broker_epoch < broker.hosting.epoch_of(replica_id)
        """It comes from an incarnation of the follower that is no more (KIP-903)."""
        self._must_answer = False
        self._even: list[ReplicaWant] = []
        self._served: list[ReplicaWant] = []
        """What the last look found: followers that have everything, and those that get records now."""
        self._is_rack_aware = broker.hosting.is_rack_aware
        self._throttle = broker.hosting.leading_throttle
        self._is_slowed = False
        """There is more, once it is paid for."""
        self._slowed_bytes = 0
        """In this response, for replicas that a throttle slows."""
        self._again: asyncio.TimerHandle | None = None

    def count(self, named: list[Want], broker_epoch: int) -> None:
        """Note how far the follower has come, wherever its history is the leader's."""
        news, session, now_ms = self._news, self._session, self._broker.hosting.now_ms()
        if session is not None and (news.broker_epoch != broker_epoch or now_ms - news.counted_ms >= COUNT_ALL_MS):
            named = list(session.wants.values())
            news.broker_epoch, news.counted_ms = broker_epoch, now_ms
        for want in named:
            assert isinstance(want, ReplicaWant)
            want.news = news
            news.wants[want] = None
            try:
                partition, follower = self._led(want)
                if parted(partition, want) is None:
                    partition.fetched_by(follower, want.fetch_offset, want.log_start, broker_epoch)
            except (KafkaError, Damage):
                continue  # the row will say so

    def _led(self, want: ReplicaWant) -> tuple[Partition, Follower]:
        """Raises KafkaError: UNKNOWN_LEADER_EPOCH or NOT_LEADER_OR_FOLLOWER for a node that is not a replica."""
        if self._is_stale:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition = want.partition
        if partition is None or partition.offline is not None or not partition.leads:
            partition = want.partition = self._find(want)
        partition.check_epoch(want.leader_epoch)
        followers = partition.followers
        follower = None if followers is None else followers.by_id.get(self._replica_id)
        if follower is None:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER if want.leader_epoch == NO_EPOCH else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
        if follower.want is not want:
            follower.want, want.follower = want, follower
        storage = partition.log
        if not storage.start <= want.fetch_offset <= storage.end:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        return partition, follower

    def try_now(self, *, final: bool) -> Response | None:
        self._must_answer = self._is_slowed = False
        response = self._try(final=final)
        if response is None and self._task is None:
            if self._must_answer:
                return self._try(final=True)
            if self._is_slowed and self._again is None:
                wait_s = self._throttle.wait_ms / 1000
                self._again = asyncio.get_running_loop().call_later(wait_s, self._look_again)
        return response

    def _try(self, *, final: bool) -> Response | None:
        self._slowed_bytes = 0
        self._even, self._served = [], []
        wanted = self._news.wants
        self.wants = list(wanted)
        response = super().try_now(final=final)
        if response is not None:
            for want in (*self._even, *self._served):
                wanted.pop(want, None)
            if self._slowed_bytes:
                self._throttle.count(self._slowed_bytes)
        elif self.request.session_epoch > INITIAL_EPOCH:
            for want in self._even:
                assert want.partition is not None, "it was looked at"
                storage = want.partition.log
                if (want.told_high_watermark, want.told_log_start) == (storage.high_watermark, storage.start):
                    wanted.pop(want, None)
        return response

    def _respond(self, rows: list[tuple[Want, PartitionData]]) -> Response:
        for want, row in rows:
            followers = None if want.partition is None else want.partition.followers
            if followers is not None and self._replica_id in followers.by_id:
                followers.by_id[self._replica_id].told_high_watermark = row.high_watermark
        return super()._respond(rows)

    def _at(self, topic: str, index: int) -> Partition:
        return self._broker.hosting.leads(topic, index)

    def _look_again(self) -> None:
        self._again = None
        self.settle()

    def _look(self, want: Want, room_bytes: int, *, is_first: bool) -> tuple[PartitionData, Partition | None]:
        assert isinstance(want, ReplicaWant)
        try:
            partition, follower = self._led(want)
            storage = partition.log
            row = PartitionData(
                partition_index=want.index,
                high_watermark=storage.high_watermark,
                last_stable_offset=storage.last_stable,
                log_start_offset=storage.start,
                aborted_transactions=None,
                records=b"",
                diverging_epoch=parted(partition, want),
            )
            if row.diverging_epoch is not None:
                self._must_answer = True
                return row, None
            upper = partition.committable_end
            if self._is_rack_aware and storage.high_watermark > follower.told_high_watermark:
                self._must_answer = True
            if want.fetch_offset >= upper:
                self._even.append(want)
                return row, None
            if room_bytes <= 0 and not is_first:
                return row, None
            is_slow = self._throttle.slows(partition, self._replica_id)
            if is_slow:
                room_bytes = min(room_bytes, self._throttle.rate - self._slowed_bytes)
                if room_bytes <= 0 or self._throttle.must_wait:
                    self._is_slowed = True
                    return row, None
            records = self._cold.get(want)
            if records is None:
                size_bytes = max(min(want.max_bytes, room_bytes), 0)
                records = storage.read(want.fetch_offset, size_bytes, upper=upper, min_one=is_first or is_slow)
                if records is None:
                    return row, partition
            row.records = records if isinstance(records, bytes) else memoryview(records)
            self._served.append(want)
            if is_slow:
                self._slowed_bytes += len(records)
        except Damage as damage:
            return self._refuse(want, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(damage))), None
        except KafkaError as refusal:
            return self._refuse(want, refusal), None
        return row, None

    def _upper(self, partition: Partition) -> int:
        return partition.committable_end

    def park(self) -> None:
        self._start_timer()
        self._news.waiter = self

    def _release(self) -> None:
        super()._release()
        if self._again is not None:
            self._again.cancel()
        if self._news.waiter is self:
            self._news.waiter = None


def parted(partition: Partition, want: ReplicaWant) -> EpochEndOffset | None:
    """Up to which epoch both logs may agree, and where that ended here; None where the follower's log is a beginning
    of this one. Raises OFFSET_OUT_OF_RANGE where that cannot be told."""
    if want.last_fetched_epoch == NO_EPOCH:
        return None
    epoch, end = partition.log.end_of_epoch(want.last_fetched_epoch)
    if epoch == UNKNOWN:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < want.last_fetched_epoch or end < want.fetch_offset:
        return EpochEndOffset(epoch=epoch, end_offset=end)
    return None


def fetch_replica(broker: Broker, call: Call, request: Request, replica_id: int) -> Response | Reply:
    """Count what the follower has, then answer at once where there is something to say, else park.

    Raises MalformedFrame where it names more than a follower does.
    """
    if call.is_long and sum(len(topic.partitions) for topic in request.topics) > NAMED_LIMIT:
        raise MalformedFrame(f"the Fetch of a replica names more than {NAMED_LIMIT} partitions")
    broker_epoch = UNKNOWN if request.replica_state is None else request.replica_state.replica_epoch
    session, named = resume(broker, request, call.version >= 13, ReplicaWant)
    news = News() if session is None else session.news
    assert news is not None, "the session is a replica's"
    reply = ReplicaFetchReply(broker, call, request, session, news, replica_id, broker_epoch)
    reply.count(named, broker_epoch)
    is_empty = not (named if session is None else session.wants)
    response = reply.try_now(final=request.max_wait_ms <= 0 or is_empty)
    if response is None:
        reply.park()
    return response or reply
