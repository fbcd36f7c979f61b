"""Produce (0): appends record batches to partitions."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Int64, Records, Uuid


@part
class PartitionProduceData:
    index: Int32 = 0
    records: Records = None


@part
class TopicProduceData:
    name: str = field("3-12")
    topic_id: Uuid = field("13+")
    partition_data: list[PartitionProduceData] = []


@message("3-13", flexible=9)
class Request:
    transactional_id: str | None = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = []


@part
class BatchIndexAndErrorMessage:
    batch_index: Int32 = field("8+")
    batch_index_error_message: str | None = field("8+")


@part
class LeaderIdAndEpoch:
    leader_id: Int32 = field("10+", default=-1)
    leader_epoch: Int32 = field("10+", default=-1)


@part
class PartitionProduceResponse:
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Int64 = -1
    log_start_offset: Int64 = field("5+", default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = field("8+")
    error_message: str | None = field("8+")
    current_leader: LeaderIdAndEpoch | None = field("10+", tag=0)


@part
class TopicProduceResponse:
    name: str = field("3-12")
    topic_id: Uuid = field("13+")
    partition_responses: list[PartitionProduceResponse] = []


@part
class NodeEndpoint:
    node_id: Int32 = field("10+")
    host: str = field("10+")
    port: Int32 = field("10+")
    rack: str | None = field("10+")


@message("3-13", flexible=9)
class Response:
    responses: list[TopicProduceResponse] = []
    throttle_time_ms: Int32 = 0
    node_endpoints: list[NodeEndpoint] = field("10+", tag=0)
