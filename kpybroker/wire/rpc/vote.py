"""Vote (52): a candidate requests the votes of the voters (KIP-595), or finds out whether it would get them (pre-vote,
KIP-996)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Int64, Uint16, Uuid


@part
class PartitionData:
    partition_index: Int32 = 0
    replica_epoch: Int32 = 0
    replica_id: Int32 = 0
    replica_directory_id: Uuid = field("1+")
    voter_directory_id: Uuid = field("1+")
    last_offset_epoch: Int32 = 0
    last_offset: Int64 = 0
    pre_vote: bool = field("2+")


@part
class TopicData:
    topic_name: str = ""
    partitions: list[PartitionData] = []


@message("0-2", flexible=0)
class Request:
    cluster_id: str | None = None
    voter_id: Int32 = field("1+", default=-1)
    topics: list[TopicData] = []


@part
class PartitionDataReply:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    vote_granted: bool = False


@part
class TopicDataReply:
    topic_name: str = ""
    partitions: list[PartitionDataReply] = []


@part
class NodeEndpoint:
    node_id: Int32 = field("1+")
    host: str = field("1+")
    port: Uint16 = field("1+")


@message("0-2", flexible=0)
class Response:
    error_code: Int16 = 0
    topics: list[TopicDataReply] = []
    node_endpoints: list[NodeEndpoint] = field("1+", tag=0)
