"""The Fetch of a consumer that names its rack: the leader sends it to a replica there (KIP-392).

A row that names a preferred replica has no records, and is answered at once. v11 carries the rack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.call import Call, Reply
from kpybroker.errors import KafkaError
from kpybroker.metadata.whereabouts import endpoints
from kpybroker.serving.fetch.consumer import READ_COMMITTED, ConsumerView
from kpybroker.serving.fetch.reply import begin
from kpybroker.serving.fetch.session import resolve
from kpybroker.serving.fetch.view import Looked
from kpybroker.wire.rpc.fetch import PartitionData, Request, Response

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.replication.partition.partition import Partition
    from kpybroker.replication.partition.sessions import Want


class NearbyView(ConsumerView):
    """The view of a consumer, unless another replica is nearer to it than this one."""

    __slots__ = ()

    def look(self, want: Want, room_bytes: int, *, is_first: bool) -> Looked:
        nearest = self._nearest(want)
        if nearest is None:
            return super().look(want, room_bytes, is_first=is_first)
        partition = want.partition
        assert partition is not None, "it was found"
        storage = partition.log
        row = PartitionData(
            partition_index=want.index,
            high_watermark=storage.high_watermark,
            last_stable_offset=storage.last_stable,
            log_start_offset=storage.start,
            aborted_transactions=[] if self.request.isolation_level == READ_COMMITTED else None,
            preferred_read_replica=nearest,
            records=b"",
        )
        return row, None, True

    def _nearest(self, want: Want) -> int | None:
        """The replica to read from; None for this one. Errors are left to the row."""
        try:
            self.require_read(want)
            partition = want.partition or want.locate(self.find(want))
            partition.check_epoch(want.leader_epoch)
        except KafkaError:
            return None
        return nearest(self.broker, partition, want.fetch_offset, self.request.rack_id, self.call.listener)


def nearest(broker: Broker, partition: Partition, offset: int, rack: str, listener: str) -> int | None:
    """An in-sync follower in the rack that has the offset: the one with the longest log; if there are several, the one
    that caught up last.

    None if this broker does not lead, if it is in the rack itself, or if there is no such follower.
    """
    followers = partition.followers
    if not partition.leads or followers is None or partition.offline is not None:
        return None
    there = {node_id for node_id, _, _, its_rack in endpoints(broker.metadata.image, listener) if its_rack == rack}
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
    """Answer at once, or park. Raises the same KafkaErrors as `session.resume`."""
    session, wants = resolve(broker, request, by_id)
    return begin(NearbyView(broker, call, request, session, wants))
