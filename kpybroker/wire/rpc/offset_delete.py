"""OffsetDelete (47): deletes committed offsets of topics to which a group does not subscribe."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import Int16, Int32


@part
class OffsetDeleteRequestPartition:
    partition_index: Int32 = 0


@part
class OffsetDeleteRequestTopic:
    name: str = ""
    partitions: list[OffsetDeleteRequestPartition] = []


@message("0")
class Request:
    group_id: str = ""
    topics: list[OffsetDeleteRequestTopic] = []


@part
class OffsetDeleteResponsePartition:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@part
class OffsetDeleteResponseTopic:
    name: str = ""
    partitions: list[OffsetDeleteResponsePartition] = []


@message("0")
class Response:
    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = []
