"""BrokerHeartbeat (63): a broker reports that it is alive, and may request to be fenced, unfenced or shut down
(KIP-631)."""

from kpybroker.wire.codec.message import field, message
from kpybroker.wire.codec.primitives import Int16, Int32, Int64, Uuid


@message("0-2", flexible=0)
class Request:
    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    current_metadata_offset: Int64 = 0
    want_fence: bool = False
    want_shut_down: bool = False
    offline_log_dirs: list[Uuid] = field("1+", tag=0)
    cordoned_log_dirs: list[Uuid] | None = field("2+", tag=1)


@message("0-2", flexible=0)
class Response:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    is_caught_up: bool = False
    is_fenced: bool = True
    should_shut_down: bool = False
