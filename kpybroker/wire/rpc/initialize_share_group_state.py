"""InitializeShareGroupState (83): initializes the state of share partitions, and replaces any earlier state."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import ZERO_UUID, Int16, Int32, Int64, Uuid


@part
class PartitionData:
    partition: Int32 = 0
    state_epoch: Int32 = 0
    start_offset: Int64 = 0


@part
class InitializeStateData:
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionData] = []


@message("0", flexible=0)
class Request:
    group_id: str = ""
    topics: list[InitializeStateData] = []


@part
class PartitionResult:
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


@part
class InitializeStateResult:
    topic_id: Uuid = ZERO_UUID
    partitions: list[PartitionResult] = []


@message("0", flexible=0)
class Response:
    results: list[InitializeStateResult] = []
