"""AlterShareGroupOffsets (91): sets start offsets of an empty share group."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int16, Int32, Int64, Uuid


@part
class AlterShareGroupOffsetsRequestPartition:
    partition_index: Int32 = 0
    start_offset: Int64 = 0


@part
class AlterShareGroupOffsetsRequestTopic:
    topic_name: str = ""
    partitions: list[AlterShareGroupOffsetsRequestPartition] = []


@message("0", flexible=0)
class Request:
    group_id: str = ""
    topics: list[AlterShareGroupOffsetsRequestTopic] = []


@part
class AlterShareGroupOffsetsResponsePartition:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


@part
class AlterShareGroupOffsetsResponseTopic:
    topic_name: str = ""
    topic_id: Uuid = ZERO_UUID
    partitions: list[AlterShareGroupOffsetsResponsePartition] = []


@message("0", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    responses: list[AlterShareGroupOffsetsResponseTopic] = []
