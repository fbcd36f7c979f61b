"""ListOffsets (2): returns the offset for a timestamp, or for a special timestamp such as -1 for the latest offset."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32, Int64


@part
class ListOffsetsPartition:
    partition_index: Int32 = 0
    current_leader_epoch: Int32 = field("4+", default=-1)
    timestamp: Int64 = 0


@part
class ListOffsetsTopic:
    name: str = ""
    partitions: list[ListOffsetsPartition] = []


@message("1-11", flexible=6)
class Request:
    replica_id: Int32 = 0
    isolation_level: Int8 = field("2+")
    topics: list[ListOffsetsTopic] = []
    timeout_ms: Int32 = field("10+")


@part
class ListOffsetsPartitionResponse:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Int32 = field("4+", default=-1)


@part
class ListOffsetsTopicResponse:
    name: str = ""
    partitions: list[ListOffsetsPartitionResponse] = []


@message("1-11", flexible=6)
class Response:
    throttle_time_ms: Int32 = field("2+")
    topics: list[ListOffsetsTopicResponse] = []
