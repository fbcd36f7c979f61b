"""EndTxn (26): commits or aborts a transaction. From v5 on, the response has the producer epoch for the next one
(KIP-890)."""

from kpybroker.wire.codec.message import field, message
from kpybroker.wire.codec.primitives import Int16, Int32, Int64


@message("0-5", flexible=3)
class Request:
    transactional_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: bool = False


@message("0-5", flexible=3)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = field("5+", default=-1)
    producer_epoch: Int16 = field("5+", default=-1)
