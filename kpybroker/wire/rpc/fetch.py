"""Fetch (1): reads record batches, without a session or in a session that keeps its partitions (KIP-227)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32, Int64, RecordChunks, Uuid


@part
class ReplicaState:
    replica_id: Int32 = field("15+", default=-1)
    replica_epoch: Int64 = field("15+", default=-1)


@part
class FetchPartition:
    partition: Int32 = 0
    current_leader_epoch: Int32 = field("9+", default=-1)
    fetch_offset: Int64 = 0
    last_fetched_epoch: Int32 = field("12+", default=-1)
    log_start_offset: Int64 = field("5+", default=-1)
    partition_max_bytes: Int32 = 0
    replica_directory_id: Uuid = field("17+", tag=0)
    high_watermark: Int64 = field("18+", default=2**63 - 1, tag=1)


@part
class FetchTopic:
    topic: str = field("4-12")
    topic_id: Uuid = field("13+")
    partitions: list[FetchPartition] = []


@part
class ForgottenTopic:
    topic: str = field("7-12")
    topic_id: Uuid = field("13+")
    partitions: list[Int32] = field("7+")


@message("4-18", flexible=12)
class Request:
    cluster_id: str | None = field("12+", tag=0)
    replica_id: Int32 = field("4-14", default=-1)
    replica_state: ReplicaState | None = field("15+", tag=1)
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 2**31 - 1
    isolation_level: Int8 = 0
    session_id: Int32 = field("7+")
    session_epoch: Int32 = field("7+", default=-1)
    topics: list[FetchTopic] = []
    forgotten_topics_data: list[ForgottenTopic] = field("7+")
    rack_id: str = field("11+")


@part
class EpochEndOffset:
    epoch: Int32 = field("12+", default=-1)
    end_offset: Int64 = field("12+", default=-1)


@part
class LeaderIdAndEpoch:
    leader_id: Int32 = field("12+", default=-1)
    leader_epoch: Int32 = field("12+", default=-1)


@part
class SnapshotId:
    end_offset: Int64 = -1
    epoch: Int32 = -1


@part
class AbortedTransaction:
    producer_id: Int64 = 0
    first_offset: Int64 = 0


@part
class PartitionData:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = -1
    log_start_offset: Int64 = field("5+", default=-1)
    diverging_epoch: EpochEndOffset | None = field("12+", tag=0)
    current_leader: LeaderIdAndEpoch | None = field("12+", tag=1)
    snapshot_id: SnapshotId | None = field("12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = []
    preferred_read_replica: Int32 = field("11+", default=-1)
    records: RecordChunks = None


@part
class FetchableTopicResponse:
    topic: str = field("4-12")
    topic_id: Uuid = field("13+")
    partitions: list[PartitionData] = []


@part
class NodeEndpoint:
    node_id: Int32 = field("16+")
    host: str = field("16+")
    port: Int32 = field("16+")
    rack: str | None = field("16+")


@message("4-18", flexible=12)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = field("7+")
    session_id: Int32 = field("7+")
    responses: list[FetchableTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = field("16+", tag=0)
