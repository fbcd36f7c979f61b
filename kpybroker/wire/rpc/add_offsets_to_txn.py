"""AddOffsetsToTxn (25): announces that a transaction will commit offsets of a group."""

from kpybroker.wire.codec.message import message
from kpybroker.wire.codec.primitives import Int16, Int32, Int64


@message("0-4", flexible=3)
class Request:
    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: str = ""


@message("0-4", flexible=3)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
