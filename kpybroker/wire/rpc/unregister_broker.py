"""UnregisterBroker (64): removes the registration of a broker that will not start again (KIP-631)."""

from kpybroker.wire.codec.message import message
from kpybroker.wire.codec.primitives import Int16, Int32


@message("0", flexible=0)
class Request:
    broker_id: Int32 = 0


@message("0", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
