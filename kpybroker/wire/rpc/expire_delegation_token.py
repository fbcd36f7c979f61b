"""ExpireDelegationToken (40): changes the expiry time of a token, or removes the token (KIP-48)."""

from kpybroker.wire.codec.message import message
from kpybroker.wire.codec.primitives import Int16, Int32, Int64


@message("1-2", flexible=2)
class Request:
    hmac: bytes = b""
    expiry_time_period_ms: Int64 = 0


@message("1-2", flexible=2)
class Response:
    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
