"""EndQuorumEpoch (54): a resigning leader announces its resignation and its preferred successors (KIP-595)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Uint16, Uuid


@part
class ReplicaInfo:
    candidate_id: Int32 = field("1+")
    candidate_directory_id: Uuid = field("1+")


@part
class PartitionData:
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    preferred_successors: list[Int32] = field("0")
    preferred_candidates: list[ReplicaInfo] = field("1+")


@part
class TopicData:
    topic_name: str = ""
    partitions: list[PartitionData] = []


@part
class LeaderEndpoint:
    name: str = field("1+")
    host: str = field("1+")
    port: Uint16 = field("1+")


@message("0-1", flexible=1)
class Request:
    cluster_id: str | None = None
    topics: list[TopicData] = []
    leader_endpoints: list[LeaderEndpoint] = field("1+")


@part
class PartitionDataReply:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


@part
class TopicDataReply:
    topic_name: str = ""
    partitions: list[PartitionDataReply] = []


@part
class NodeEndpoint:
    node_id: Int32 = field("1+")
    host: str = field("1+")
    port: Uint16 = field("1+")


@message("0-1", flexible=1)
class Response:
    error_code: Int16 = 0
    topics: list[TopicDataReply] = []
    node_endpoints: list[NodeEndpoint] = field("1+", tag=0)
