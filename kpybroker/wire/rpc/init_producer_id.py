"""InitProducerId (22): returns a producer id and epoch for an idempotent or transactional producer."""

from kpybroker.wire.codec.message import field, message
from kpybroker.wire.codec.primitives import Int16, Int32, Int64


@message("0-6", flexible=2)
class Request:
    transactional_id: str | None = ""
    transaction_timeout_ms: Int32 = 0
    producer_id: Int64 = field("3+", default=-1)
    producer_epoch: Int16 = field("3+", default=-1)
    enable2_pc: bool = field("6+")
    keep_prepared_txn: bool = field("6+")


@message("0-6", flexible=2)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Int64 = field("6+", default=-1)
    ongoing_txn_producer_epoch: Int16 = field("6+", default=-1)
