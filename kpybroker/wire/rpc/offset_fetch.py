"""OffsetFetch (9): returns the committed offsets of a group. From version 8 on, it may contain several groups."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Int64, Uuid


@part
class OffsetFetchRequestTopic:
    name: str = field("1-7")
    partition_indexes: list[Int32] = field("1-7")


@part
class OffsetFetchRequestTopics:
    name: str = field("8-9")
    topic_id: Uuid = field("10+")
    partition_indexes: list[Int32] = field("8+")


@part
class OffsetFetchRequestGroup:
    group_id: str = field("8+")
    member_id: str | None = field("9+")
    member_epoch: Int32 = field("9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = field("8+", default=[])


@message("1-10", flexible=6)
class Request:
    group_id: str = field("1-7")
    topics: list[OffsetFetchRequestTopic] | None = field("1-7", default=[], nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = field("8+")
    require_stable: bool = field("7+")


@part
class OffsetFetchResponsePartition:
    partition_index: Int32 = field("1-7")
    committed_offset: Int64 = field("1-7")
    committed_leader_epoch: Int32 = field("5-7", default=-1)
    metadata: str | None = field("1-7", default="")
    error_code: Int16 = field("1-7")


@part
class OffsetFetchResponseTopic:
    name: str = field("1-7")
    partitions: list[OffsetFetchResponsePartition] = field("1-7")


@part
class OffsetFetchResponsePartitions:
    partition_index: Int32 = field("8+")
    committed_offset: Int64 = field("8+")
    committed_leader_epoch: Int32 = field("8+", default=-1)
    metadata: str | None = field("8+", default="")
    error_code: Int16 = field("8+")


@part
class OffsetFetchResponseTopics:
    name: str = field("8-9")
    topic_id: Uuid = field("10+")
    partitions: list[OffsetFetchResponsePartitions] = field("8+")


@part
class OffsetFetchResponseGroup:
    group_id: str = field("8+")
    topics: list[OffsetFetchResponseTopics] = field("8+")
    error_code: Int16 = field("8+")


@message("1-10", flexible=6)
class Response:
    throttle_time_ms: Int32 = field("3+")
    topics: list[OffsetFetchResponseTopic] = field("1-7")
    error_code: Int16 = field("2-7")
    groups: list[OffsetFetchResponseGroup] = field("8+")
