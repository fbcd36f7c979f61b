"""WriteShareGroupState (85): changes the state of share partitions."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int8, Int16, Int32, Int64, Uuid


@part
class StateBatch:
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


@part
class PartitionData:
    partition: Int32 = 0
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Int32 = field("1+", default=-1)
    state_batches: list[StateBatch] = []


@part
class WriteStateData:
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = []


@message("0-1", flexible=0)
class Request:
    group_id: str = ""
    topics: list[WriteStateData] = []


@part
class PartitionResult:
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


@part
class WriteStateResult:
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionResult] = []


@message("0-1", flexible=0)
class Response:
    results: list[WriteStateResult] = []
