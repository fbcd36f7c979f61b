"""ReadShareGroupState (84): returns the state of share partitions to their leader."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int8, Int16, Int32, Int64, Uuid


@part
class PartitionData:
    partition: Int32 = 0
    leader_epoch: Int32 = 0


@part
class ReadStateData:
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = []


@message("0", flexible=0)
class Request:
    group_id: str = ""
    topics: list[ReadStateData] = []


@part
class StateBatch:
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


@part
class PartitionResult:
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    state_epoch: Int32 = 0
    start_offset: Int64 = 0
    state_batches: list[StateBatch] = []


@part
class ReadStateResult:
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionResult] = []


@message("0", flexible=0)
class Response:
    results: list[ReadStateResult] = []
