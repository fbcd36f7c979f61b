"""OffsetCommit (8): stores the offsets that a group has consumed."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Int64, Uuid


@part
class OffsetCommitRequestPartition:
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = field("6+", default=-1)
    committed_metadata: str | None = ""


@part
class OffsetCommitRequestTopic:
    name: str = field("2-9")
    topic_id: Uuid = field("10+")
    partitions: list[OffsetCommitRequestPartition] = []


@message("2-10", flexible=8)
class Request:
    group_id: str = ""
    generation_id_or_member_epoch: Int32 = -1
    member_id: str = ""
    group_instance_id: str | None = field("7+")
    retention_time_ms: Int64 = field("2-4", default=-1)
    topics: list[OffsetCommitRequestTopic] = []


@part
class OffsetCommitResponsePartition:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@part
class OffsetCommitResponseTopic:
    name: str = field("2-9")
    topic_id: Uuid = field("10+")
    partitions: list[OffsetCommitResponsePartition] = []


@message("2-10", flexible=8)
class Response:
    throttle_time_ms: Int32 = field("3+")
    topics: list[OffsetCommitResponseTopic] = []
