"""ReadShareGroupStateSummary (87): returns the start offsets of share partitions, without their batches."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int16, Int32, Int64, Uuid


@part
class PartitionData:
    partition: Int32 = 0
    leader_epoch: Int32 = 0


@part
class ReadStateSummaryData:
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = []


@message("0-1", flexible=0)
class Request:
    group_id: str = ""
    topics: list[ReadStateSummaryData] = []


@part
class PartitionResult:
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Int32 = field("1+", default=-1)


@part
class ReadStateSummaryResult:
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionResult] = []


@message("0-1", flexible=0)
class Response:
    results: list[ReadStateSummaryResult] = []
