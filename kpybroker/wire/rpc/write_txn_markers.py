"""WriteTxnMarkers (27): a transaction coordinator ends transactions in the partitions that a broker leads."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32, Int64


@part
class WritableTxnMarkerTopic:
    name: str = ""
    partition_indexes: list[Int32] = []


@part
class WritableTxnMarker:
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: bool = False
    topics: list[WritableTxnMarkerTopic] = []
    coordinator_epoch: Int32 = 0
    transaction_version: Int8 = field("2+")


@message("1-2", flexible=1)
class Request:
    markers: list[WritableTxnMarker] = []


@part
class WritableTxnMarkerPartitionResult:
    partition_index: Int32 = 0
    error_code: Int16 = 0


@part
class WritableTxnMarkerTopicResult:
    name: str = ""
    partitions: list[WritableTxnMarkerPartitionResult] = []


@part
class WritableTxnMarkerResult:
    producer_id: Int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = []


@message("1-2", flexible=1)
class Response:
    markers: list[WritableTxnMarkerResult] = []
