"""DescribeProducers (61): returns the active producers of a partition (KIP-664)."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Int64


@part
class TopicRequest:
    name: str = ""
    partition_indexes: list[Int32] = []


@message("0", flexible=0)
class Request:
    topics: list[TopicRequest] = []


@part
class ProducerState:
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


@part
class PartitionResponse:
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    active_producers: list[ProducerState] = []


@part
class TopicResponse:
    name: str = ""
    partitions: list[PartitionResponse] = []


@message("0", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse] = []
