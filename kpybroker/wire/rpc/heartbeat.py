"""Heartbeat (12): a member reports that it is alive, and learns whether its generation is the current one."""

from kpybroker.wire.codec.message import field, message
from kpybroker.wire.codec.primitives import Int16, Int32


@message("0-4", flexible=4)
class Request:
    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: str | None = field("3+")


@message("0-4", flexible=4)
class Response:
    throttle_time_ms: Int32 = field("1+")
    error_code: Int16 = 0
