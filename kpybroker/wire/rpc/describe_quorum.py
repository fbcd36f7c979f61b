"""DescribeQuorum (55): returns the leader of the metadata quorum, and the progress of each replica (KIP-836)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Int64, Uint16, Uuid


@part
class PartitionData:
    partition_index: Int32 = 0


@part
class TopicData:
    topic_name: str = ""
    partitions: list[PartitionData] = []


@message("0-2", flexible=0)
class Request:
    topics: list[TopicData] = []


@part
class ReplicaState:
    replica_id: Int32 = 0
    replica_directory_id: Uuid = field("2+")
    log_end_offset: Int64 = 0
    last_fetch_timestamp: Int64 = field("1+", default=-1)
    last_caught_up_timestamp: Int64 = field("1+", default=-1)


@part
class PartitionDataReply:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = field("2+", default="")
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    high_watermark: Int64 = 0
    current_voters: list[ReplicaState] = []
    observers: list[ReplicaState] = []


@part
class TopicDataReply:
    topic_name: str = ""
    partitions: list[PartitionDataReply] = []


@part
class Listener:
    name: str = field("2+")
    host: str = field("2+")
    port: Uint16 = field("2+")


@part
class Node:
    node_id: Int32 = field("2+")
    listeners: list[Listener] = field("2+")


@message("0-2", flexible=0)
class Response:
    error_code: Int16 = 0
    error_message: str | None = field("2+", default="")
    topics: list[TopicDataReply] = []
    nodes: list[Node] = field("2+")
