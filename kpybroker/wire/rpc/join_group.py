"""JoinGroup (11): a member joins a group, or its next generation."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32


@part
class JoinGroupRequestProtocol:
    name: str = ""
    metadata: bytes = b""


@message("0-9", flexible=6)
class Request:
    group_id: str = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Int32 = field("1+", default=-1)
    member_id: str = ""
    group_instance_id: str | None = field("5+")
    protocol_type: str = ""
    protocols: list[JoinGroupRequestProtocol] = []
    reason: str | None = field("8+")


@part
class JoinGroupResponseMember:
    member_id: str = ""
    group_instance_id: str | None = field("5+")
    metadata: bytes = b""


@message("0-9", flexible=6)
class Response:
    throttle_time_ms: Int32 = field("2+")
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: str | None = field("7+")
    protocol_name: str | None = field(default="", nullable="7+")
    leader: str = ""
    skip_assignment: bool = field("9+")
    member_id: str = ""
    members: list[JoinGroupResponseMember] = []
