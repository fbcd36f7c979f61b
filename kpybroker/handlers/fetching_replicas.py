"""The Fetch by followers: `handlers/fetch.py` hands it over.

A follower reads up to the end of the log, and tells by its offset that it has all below: that moves the high watermark
and brings it into the in-sync set. v12 carries the epoch of its last record: where the histories differ it is told
where they parted (KIP-595). v15 its broker's epoch (KIP-903).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call, Reply
from kpybroker.errors import Damage, ErrorCode, KafkaError
from kpybroker.handlers.fetch import FetchReply, resolve
from kpybroker.replication.followers import UNKNOWN, Follower, Followers
from kpybroker.replication.sessions import ReplicaWant, Session, Want
from kpybroker.wire.rpc.fetch import EpochEndOffset, PartitionData, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker import Broker
    from kpybroker.replication.partition import Partition

NO_EPOCH = -1


class ReplicaFetchReply(FetchReply):
    """A follower's fetch that waits for something to be appended, or for its time to end."""

    __slots__ = ("_must_answer", "_parked_at", "_replica_id")

    def __init__(
        self,
        broker: Broker,
        call: Call,
        request: Request,
        session: Session | None,
        wants: list[Want],
        replica_id: int,
    ) -> None:
        super().__init__(broker, call, request, session, wants)
        self._replica_id = replica_id
        self._must_answer = False
        self._parked_at: list[Followers] = []

    def count(self, broker_epoch: int) -> None:
        """Note how far the follower has come, wherever its history is the leader's."""
        for want in self._wants:
            assert isinstance(want, ReplicaWant)
            try:
                partition, follower = self._led(want)
                if parted(partition, want) is None:
                    partition.fetched_by(follower, want.fetch_offset, want.log_start, broker_epoch)
            except (KafkaError, Damage):
                continue  # the row will say so

    def _led(self, want: ReplicaWant) -> tuple[Partition, Follower]:
        """Raises KafkaError: UNKNOWN_LEADER_EPOCH or NOT_LEADER_OR_FOLLOWER for a node that is not a replica."""
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
        storage = partition.log
        if not storage.start <= want.fetch_offset <= storage.end:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        return partition, follower

    def try_now(self, *, final: bool) -> Response | None:
        self._must_answer = False
        response = super().try_now(final=final)
        if response is None and self._must_answer and self._task is None:
            response = super().try_now(final=True)
        return response

    def _look(self, want: Want, room_bytes: int, *, is_first: bool) -> tuple[PartitionData, Partition | None]:
        assert isinstance(want, ReplicaWant)
        try:
            partition, _ = self._led(want)
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
            if want.fetch_offset >= upper or (room_bytes <= 0 and not is_first):
                return row, None
            records = self._cold.get(want)
            if records is None:
                size_bytes = max(min(want.max_bytes, room_bytes), 0)
                records = storage.read(want.fetch_offset, size_bytes, upper=upper, min_one=is_first)
                if records is None:
                    return row, partition
            row.records = records if isinstance(records, bytes) else memoryview(records)
        except Damage as damage:
            return self._refuse(want, KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(damage))), None
        except KafkaError as refusal:
            return self._refuse(want, refusal), None
        return row, None

    def _upper(self, partition: Partition) -> int:
        return partition.committable_end

    def _watch(self, partition: Partition) -> None:
        followers = partition.followers
        if followers is not None:
            followers.fetches[self] = None
            self._parked_at.append(followers)

    def _release(self) -> None:
        super()._release()
        for followers in self._parked_at:
            followers.fetches.pop(self, None)
        self._parked_at = []


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
    """Count what the follower has, then answer at once where there is something to say, else park."""
    state = request.replica_state
    session, wants = resolve(broker, request, call.version >= 13, ReplicaWant)
    reply = ReplicaFetchReply(broker, call, request, session, wants, replica_id)
    reply.count(UNKNOWN if state is None else state.replica_epoch)
    response = reply.try_now(final=request.max_wait_ms <= 0 or not wants)
    if response is not None:
        return response
    reply.park()
    return reply
