"""The Fetch of a consumer that says where it is: the leader sends it to a replica in its own rack (KIP-392).

A row that names a preferred replica has no records, and is answered at once. v11 carries the rack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call, Reply
from kpybroker.errors import KafkaError
from kpybroker.handlers.fetch import FetchReply, begin
from kpybroker.metadata.whereabouts import endpoints
from kpybroker.serving.fetch.session import resolve
from kpybroker.wire.rpc.fetch import PartitionData, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker import Broker
    from kpybroker.replication.partition.partition import Partition
    from kpybroker.replication.partition.sessions import Want


class NearbyFetchReply(FetchReply):
    """Looks first whether another replica is nearer than this one."""

    __slots__ = ("_sends_away",)

    def try_now(self, *, final: bool) -> Response | None:
        self._sends_away = False
        response = super().try_now(final=final)
        if response is None and self._sends_away and self._task is None:
            response = super().try_now(final=True)
        return response

    def _look(self, want: Want, room_bytes: int, *, is_first: bool) -> tuple[PartitionData, Partition | None]:
        nearest = self._nearest(want)
        if nearest is None:
            return super()._look(want, room_bytes, is_first=is_first)
        self._sends_away = True
        partition = want.partition
        assert partition is not None, "it was found"
        storage = partition.log
        row = PartitionData(
            partition_index=want.index,
            high_watermark=storage.high_watermark,
            last_stable_offset=storage.last_stable,
            log_start_offset=storage.start,
            aborted_transactions=[] if self.request.isolation_level else None,
            preferred_read_replica=nearest,
            records=b"",
        )
        return row, None

    def _nearest(self, want: Want) -> int | None:
        """The replica to read from, if that is not here; what is wrong with the fetch the row will say."""
        try:
            partition = want.partition = want.partition or self._find(want)
            partition.check_epoch(want.leader_epoch)
        except KafkaError:
            return None
        return nearest(self._broker, partition, want.fetch_offset, self.request.rack_id, self.call.listener)


def nearest(broker: Broker, partition: Partition, offset: int, rack: str, listener: str) -> int | None:
    """An in-sync follower in the rack that has the offset: of several the one that has most, and has shown it last.

    None where this broker does not lead, where it is in the rack itself, or where nobody else is.
    """
    followers = partition.followers
    if not partition.leads or followers is None or partition.offline is not None:
        return None
    there = {node_id for node_id, _, _, its_rack in endpoints(broker.image, listener) if its_rack == rack}
    if broker.node_id in there:
        return None
    able = [
        follower
        for follower in followers.by_id.values()
        if follower.node_id in there
        and follower.node_id in partition.isr
        and follower.log_start <= offset <= follower.log_end
    ]
    return max(able, key=lambda each: (each.log_end, each.caught_up_ms)).node_id if able else None


def fetch_nearby(broker: Broker, call: Call, request: Request, by_id: bool) -> Response | Reply:
    """Answer at once where there is something to say, else park."""
    session, wants = resolve(broker, request, by_id)
    return begin(NearbyFetchReply(broker, call, request, session, wants))
