"""The Fetch of a consumer with a rack: the leader names a follower in that rack as the preferred read replica
(KIP-392).

Rows with a preferred read replica have no records, and the response is sent at once. v11 and later contain the rack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kpybroker.errors import KafkaError
from kpybroker.metadata.whereabouts import endpoints
from kpybroker.serving.fetch.consumer import ConsumerView
from kpybroker.serving.fetch.view import Looked

if TYPE_CHECKING:
    from kpybroker.broker.broker import Broker
    from kpybroker.replication.partition.partition import Partition
    from kpybroker.replication.partition.sessions import Want


class NearbyView(ConsumerView):
    """The view for a Fetch of a consumer with a rack. It names preferred read replicas."""

    __slots__ = ()

    def look(self, want: Want, room_bytes: int, *, is_first: bool) -> Looked:
        nearest = self._nearest(want)
        if nearest is None:
            return super().look(want, room_bytes, is_first=is_first)
        partition = want.partition
        assert partition is not None, "it was found"
        row = self.empty_row(want, partition.log)
        row.preferred_read_replica = nearest
        return row, None, True

    def _nearest(self, want: Want) -> int | None:
        """The preferred read replica; None for this one, or if there is an error, which `look` will find as well."""
        try:
            self.require_read(want)
            partition = want.partition or want.locate(self.find(want))
            partition.check_epoch(want.leader_epoch)
        except KafkaError:
            return None
        return nearest(self.broker, partition, want.fetch_offset, self.request.rack_id, self.call.listener)


def nearest(broker: Broker, partition: Partition, offset: int, rack: str, listener: str) -> int | None:
    """The preferred read replica: an in-sync follower in the rack whose log contains the offset.

    If there are several, it is the one with the longest log or, if several logs end at the same offset, the one that
    caught up last. The result is None if there is no such follower, or if this broker is not the leader or is in the
    rack itself.
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
