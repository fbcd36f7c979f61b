"""AlterPartitionReassignments (45): changes the replicas of partitions, or cancels such a change (KIP-455)."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32


@part
class ReassignablePartition:
    partition_index: Int32 = 0
    replicas: list[Int32] | None = None


@part
class ReassignableTopic:
    name: str = ""
    partitions: list[ReassignablePartition] = []


@message("0-1", flexible=0)
class Request:
    timeout_ms: Int32 = 60000
    allow_replication_factor_change: bool = field("1+", default=True)
    topics: list[ReassignableTopic] = []


@part
class ReassignablePartitionResponse:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""


@part
class ReassignableTopicResponse:
    name: str = ""
    partitions: list[ReassignablePartitionResponse] = []


@message("0-1", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: bool = field("1+", default=True)
    error_code: Int16 = 0
    error_message: str | None = ""
    responses: list[ReassignableTopicResponse] = []
