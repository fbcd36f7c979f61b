"""DeleteShareGroupState (86): deletes the state of share partitions."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int16, Int32, Uuid


@part
class PartitionData:
    partition: Int32 = 0


@part
class DeleteStateData:
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = []


@message("0", flexible=0)
class Request:
    group_id: str = ""
    topics: list[DeleteStateData] = []


@part
class PartitionResult:
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


@part
class DeleteStateResult:
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionResult] = []


@message("0", flexible=0)
class Response:
    results: list[DeleteStateResult] = []
