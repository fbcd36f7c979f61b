"""The Fetch of a follower.

A follower reads up to the end of the log. Its fetch offset means that it has all earlier records. With that, the leader
advances the high watermark and adds the follower to the ISR. In a session, a Fetch reads only the partitions that it
names and those with new data. Every COUNT_ALL_MS the fetch offsets of all partitions are counted, so that an idle
follower counts as caught up. v12 and later contain the epoch of the follower's last record: if the logs differ, the
response contains the diverging epoch (KIP-595). v15 and later contain the follower's broker epoch (KIP-903).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kpybroker.call import Call, Reply
from kpybroker.errors import Damage, ErrorCode, KafkaError, MalformedFrame
from kpybroker.replication.follower.fetch_session import NAMED_MAX
from kpybroker.replication.partition.followers import UNKNOWN, Follower
from kpybroker.replication.partition.news import News
from kpybroker.replication.partition.sessions import INITIAL_EPOCH, ReplicaWant, Session, Want
from kpybroker.serving.fetch.reply import begin
from kpybroker.serving.fetch.session import resume
from kpybroker.serving.fetch.view import Cold, Looked, View
from kpybroker.wire.rpc.fetch import EpochEndOffset, PartitionData, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.replication.partition.flush_queue import Waiter
    from kpybroker.replication.partition.partition import Partition

NO_EPOCH: Final = -1
NAMED_LIMIT: Final = 2 * NAMED_MAX
"""The maximum number of partitions in one Fetch, which are all read in one turn of the event loop."""
COUNT_ALL_MS: Final = 250
"""How often the fetch offsets of all partitions of a session are counted: much more often than any
replica.lag.time.max.ms."""


class ReplicaView(View):
    """The view for a Fetch of a follower. It reads the partitions that have new data for the follower."""

    __slots__ = (
        "_broker_epoch",
        "_even",
        "_is_rack_aware",
        "_is_slowed",
        "_is_stale",
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
        news: News[ReplicaWant],
        replica_id: int,
    ) -> None:
        super().__init__(broker, call, request, session, [])
        self._news = news
        self._replica_id = replica_id
        self._broker_epoch = UNKNOWN if request.replica_state is None else request.replica_state.replica_epoch
        self._is_stale = UNKNOWN < self._broker_epoch < broker.replication.hosting.rules.epoch_of(replica_id)
        """Whether an earlier incarnation of the follower sent this Fetch (KIP-903)."""
        self._even: list[ReplicaWant] = []
        """The partitions in which the last read found no new records."""
        self._served: list[ReplicaWant] = []
        """The partitions in which the last read found records."""
        self._is_rack_aware = broker.replication.hosting.rules.is_rack_aware
        self._throttle = broker.replication.hosting.leading_throttle
        self._is_slowed = False
        """Whether the last read omitted records because of the replication throttle."""
        self._slowed_bytes = 0
        """Bytes of the last read that count for the replication throttle."""

    def count(self, named: list[Want]) -> None:
        """Store the fetch offset of the follower in each partition where the follower's log is a prefix of this one."""
        news, session, now_ms = self._news, self.session, self.broker.replication.hosting.rules.now_ms()
        if session is not None and news.is_due(self._broker_epoch, now_ms, COUNT_ALL_MS):
            named = list(session.wants.values())
        for want in named:
            assert isinstance(want, ReplicaWant)
            want.join(news)
            try:
                partition, follower = self._led(want)
                if parted(partition, want) is None:
                    partition.fetched_by(follower, want.fetch_offset, want.log_start, self._broker_epoch)
            except (KafkaError, Damage):
                continue  # `look` will return a row with the error

    def _led(self, want: ReplicaWant) -> tuple[Partition, Follower]:
        """The partition that this broker leads, and its follower that sent the Fetch. Raises KafkaError, for example
        UNKNOWN_LEADER_EPOCH or NOT_LEADER_OR_FOLLOWER if the sender is not a replica."""
        if self._is_stale:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        partition = want.partition
        if partition is None or partition.offline is not None or not partition.leads:
            partition = want.locate(self.find(want))
        partition.check_epoch(want.leader_epoch)
        followers = partition.followers
        follower = None if followers is None else followers.by_id.get(self._replica_id)
        if follower is None:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER if want.leader_epoch == NO_EPOCH else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
        if follower.want is not want:
            want.belong_to(follower)
        storage = partition.log
        is_beyond = want.fetch_offset > storage.end and want.last_fetched_epoch == NO_EPOCH
        if want.fetch_offset < storage.start or is_beyond:  # with an epoch, `parted` says where to truncate
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        return partition, follower

    def answer(self, *, final: bool) -> Response | Cold | None:
        self._is_slowed, self._slowed_bytes = False, 0
        self._even, self._served = [], []
        unseen = self._news.wants
        self.look_at(list(unseen))
        found = super().answer(final=final)
        if isinstance(found, Response):
            for want in (*self._even, *self._served):
                unseen.pop(want, None)
            if self._slowed_bytes:
                self._throttle.count(self._slowed_bytes)
        elif self.request.session_epoch > INITIAL_EPOCH:
            for want in self._even:
                assert want.partition is not None, "`look` runs before this"
                storage = want.partition.log
                if want.knows(storage.high_watermark, storage.start):
                    unseen.pop(want, None)
        return found

    @property
    def is_empty(self) -> bool:
        return not (self._news.wants if self.session is None else self.session.wants)

    @property
    def again_s(self) -> float | None:
        return self._throttle.wait_ms / 1000 if self._is_slowed else None

    def respond(self, rows: list[tuple[Want, PartitionData]]) -> Response:
        for want, row in rows:
            followers = None if want.partition is None else want.partition.followers
            if followers is not None and self._replica_id in followers.by_id:
                followers.by_id[self._replica_id].tell(row.high_watermark)
        return super().respond(rows)

    def hosted(self, topic: str, index: int) -> Partition:
        return self.broker.replication.hosting.leads(topic, index)

    def look(self, want: Want, room_bytes: int, *, is_first: bool) -> Looked:
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
                return row, None, True
            upper = partition.committable_end
            is_urgent = self._is_rack_aware and storage.high_watermark > follower.told_high_watermark
            if want.fetch_offset >= upper:
                self._even.append(want)
                return row, None, is_urgent
            if room_bytes <= 0 and not is_first:
                return row, None, is_urgent
            is_slow = self._throttle.slows(partition, self._replica_id)
            if is_slow:
                room_bytes = min(room_bytes, self._throttle.rate - self._slowed_bytes)
                if room_bytes <= 0 or self._throttle.must_wait:
                    self._is_slowed = True
                    return row, None, is_urgent
            records = self.cold.get(want)
            if records is None:
                size_bytes = max(min(want.max_bytes, room_bytes), 0)
                records = storage.read(want.fetch_offset, size_bytes, upper=upper, min_one=is_first or is_slow)
                if records is None:
                    return row, partition, is_urgent
            row.records = records if isinstance(records, bytes) else memoryview(records)
            self._served.append(want)
            if is_slow:
                self._slowed_bytes += len(records)
        except (KafkaError, Damage) as error:
            return self.refuse(want, error)
        return row, None, is_urgent

    def upper(self, partition: Partition) -> int:
        return partition.committable_end

    def watch(self, reply: Waiter) -> None:
        self._news.park(reply)

    def unwatch(self, reply: Waiter) -> None:
        self._news.unpark(reply)


def parted(partition: Partition, want: ReplicaWant) -> EpochEndOffset | None:
    """The diverging epoch: the last epoch that both logs may have in common, with its end offset in this log.

    The result is None if the follower's log is a prefix of this log. Raises OFFSET_OUT_OF_RANGE if the epoch is
    unknown.
    """
    if want.last_fetched_epoch == NO_EPOCH:
        return None
    epoch, end = partition.log.end_of_epoch(want.last_fetched_epoch)
    if epoch == UNKNOWN:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < want.last_fetched_epoch or end < want.fetch_offset:
        return EpochEndOffset(epoch=epoch, end_offset=end)
    return None


def check_size(call: Call, request: Request) -> None:
    """Raise MalformedFrame if there are more partitions than followers put into one Fetch."""
    if call.is_long and sum(max(len(topic.partitions), 1) for topic in request.topics) > NAMED_LIMIT:
        raise MalformedFrame(f"the Fetch of a replica names more than {NAMED_LIMIT} partitions")


def fetch_replica(broker: Broker, call: Call, request: Request, replica_id: int) -> Response | Reply:
    """Count the fetch offsets of the follower. Return the response, or a reply that waits for records.

    Raises the same KafkaErrors as `session.resume`.
    """
    session, named = resume(broker, request, call.version >= 13, ReplicaWant)
    news = News() if session is None else session.news
    assert news is not None, "the session is a replica's"
    view = ReplicaView(broker, call, request, session, news, replica_id)
    view.count(named)
    return begin(view)
