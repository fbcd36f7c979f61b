"""AllocateProducerIds (67): a broker requests a block of producer ids (KIP-730)."""

from kpybroker.wire.codec.message import message
from kpybroker.wire.codec.primitives import Int16, Int32, Int64


@message("0", flexible=0)
class Request:
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1


@message("0", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id_start: Int64 = 0
    producer_id_len: Int32 = 0
