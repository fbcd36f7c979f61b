"""FetchSnapshot (59): returns a piece of a snapshot, if a replica's log ends before the leader's log starts
(KIP-630)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Int64, RecordChunks, Uint16, Uuid


@part
class SnapshotId:
    end_offset: Int64 = 0
    epoch: Int32 = 0


@part
class PartitionSnapshot:
    partition: Int32 = 0
    current_leader_epoch: Int32 = 0
    snapshot_id: SnapshotId = field()
    position: Int64 = 0
    replica_directory_id: Uuid = field("1+", tag=0)


@part
class TopicSnapshot:
    name: str = ""
    partitions: list[PartitionSnapshot] = []


@message("0-1", flexible=0)
class Request:
    cluster_id: str | None = field("0+", tag=0)
    replica_id: Int32 = -1
    max_bytes: Int32 = 2**31 - 1
    topics: list[TopicSnapshot] = []


@part
class LeaderIdAndEpoch:
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


@part
class PartitionSnapshotReply:
    index: Int32 = 0
    error_code: Int16 = 0
    snapshot_id: SnapshotId = field()
    current_leader: LeaderIdAndEpoch | None = field("0+", tag=0)
    size: Int64 = 0
    position: Int64 = 0
    unaligned_records: RecordChunks = field(nullable="none")


@part
class TopicSnapshotReply:
    name: str = ""
    partitions: list[PartitionSnapshotReply] = []


@part
class NodeEndpoint:
    node_id: Int32 = field("1+")
    host: str = field("1+")
    port: Uint16 = field("1+")


@message("0-1", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: list[TopicSnapshotReply] = []
    node_endpoints: list[NodeEndpoint] = field("1+", tag=0)
