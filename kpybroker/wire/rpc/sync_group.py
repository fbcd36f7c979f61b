"""SyncGroup (14): the leader sends all assignments, and every member receives its own."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32


@part
class SyncGroupRequestAssignment:
    member_id: str = ""
    assignment: bytes = b""


@message("0-5", flexible=4)
class Request:
    group_id: str = ""
    generation_id: Int32 = 0
    member_id: str = ""
    group_instance_id: str | None = field("3+")
    protocol_type: str | None = field("5+")
    protocol_name: str | None = field("5+")
    assignments: list[SyncGroupRequestAssignment] = []


@message("0-5", flexible=4)
class Response:
    throttle_time_ms: Int32 = field("1+")
    error_code: Int16 = 0
    protocol_type: str | None = field("5+")
    protocol_name: str | None = field("5+")
    assignment: bytes = b""
