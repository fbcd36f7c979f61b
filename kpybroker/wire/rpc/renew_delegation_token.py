"""RenewDelegationToken (39): changes the expiry time of a token, within its maximum lifetime (KIP-48)."""

from kpybroker.wire.codec.message import message
from kpybroker.wire.codec.primitives import Int16, Int32, Int64


@message("1-2", flexible=2)
class Request:
    hmac: bytes = b""
    renew_period_ms: Int64 = 0


@message("1-2", flexible=2)
class Response:
    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0
