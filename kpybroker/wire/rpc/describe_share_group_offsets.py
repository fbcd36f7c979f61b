"""DescribeShareGroupOffsets (90): returns the start offsets and lags of share groups."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int16, Int32, Int64, Uuid


@part
class DescribeShareGroupOffsetsRequestTopic:
    topic_name: str = ""
    partitions: list[Int32] = []


@part
class DescribeShareGroupOffsetsRequestGroup:
    group_id: str = ""
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = []


@message("0-1", flexible=0)
class Request:
    groups: list[DescribeShareGroupOffsetsRequestGroup] = []


@part
class DescribeShareGroupOffsetsResponsePartition:
    partition_index: Int32 = 0
    start_offset: Int64 = 0
    leader_epoch: Int32 = 0
    lag: Int64 = field("1+", default=-1)
    error_code: Int16 = 0
    error_message: str | None = None


@part
class DescribeShareGroupOffsetsResponseTopic:
    topic_name: str = ""
    topic_id: Uuid = ZERO_UUID
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = []


@part
class DescribeShareGroupOffsetsResponseGroup:
    group_id: str = ""
    topics: list[DescribeShareGroupOffsetsResponseTopic] = []
    error_code: Int16 = 0
    error_message: str | None = None


@message("0-1", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    groups: list[DescribeShareGroupOffsetsResponseGroup] = []
