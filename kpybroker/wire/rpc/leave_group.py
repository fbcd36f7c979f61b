"""LeaveGroup (13): members leave a group before their sessions expire."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32


@part
class MemberIdentity:
    member_id: str = field("3+")
    group_instance_id: str | None = field("3+")
    reason: str | None = field("5+")


@message("0-5", flexible=4)
class Request:
    group_id: str = ""
    member_id: str = field("0-2")
    members: list[MemberIdentity] = field("3+")


@part
class MemberResponse:
    member_id: str = field("3+")
    group_instance_id: str | None = field("3+", default="")
    error_code: Int16 = field("3+")


@message("0-5", flexible=4)
class Response:
    throttle_time_ms: Int32 = field("1+")
    error_code: Int16 = 0
    members: list[MemberResponse] = field("3+")
