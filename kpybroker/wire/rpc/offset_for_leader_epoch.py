"""OffsetForLeaderEpoch (23): returns the end offset of a leader epoch."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Int64


@part
class OffsetForLeaderPartition:
    partition: Int32 = 0
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


@part
class OffsetForLeaderTopic:
    topic: str = ""
    partitions: list[OffsetForLeaderPartition] = []


@message("2-4", flexible=4)
class Request:
    replica_id: Int32 = field("3+", default=-2)
    topics: list[OffsetForLeaderTopic] = []


@part
class EpochEndOffset:
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


@part
class OffsetForLeaderTopicResult:
    topic: str = ""
    partitions: list[EpochEndOffset] = []


@message("2-4", flexible=4)
class Response:
    throttle_time_ms: Int32 = 0
    topics: list[OffsetForLeaderTopicResult] = []
