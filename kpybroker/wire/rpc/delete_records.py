"""DeleteRecords (21): raises the log start offset of partitions."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import Int16, Int32, Int64


@part
class DeleteRecordsPartition:
    partition_index: Int32 = 0
    offset: Int64 = 0


@part
class DeleteRecordsTopic:
    name: str = ""
    partitions: list[DeleteRecordsPartition] = []


@message("0-2", flexible=2)
class Request:
    topics: list[DeleteRecordsTopic] = []
    timeout_ms: Int32 = 0


@part
class DeleteRecordsPartitionResult:
    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


@part
class DeleteRecordsTopicResult:
    name: str = ""
    partitions: list[DeleteRecordsPartitionResult] = []


@message("0-2", flexible=2)
class Response:
    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = []
