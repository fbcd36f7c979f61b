"""DescribeGroups (15): returns the state, protocol and members of groups."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32


@message("0-6", flexible=5)
class Request:
    groups: list[str] = []
    include_authorized_operations: bool = field("3+")


@part
class DescribedGroupMember:
    member_id: str = ""
    group_instance_id: str | None = field("4+")
    client_id: str = ""
    client_host: str = ""
    member_metadata: bytes = b""
    member_assignment: bytes = b""


@part
class DescribedGroup:
    error_code: Int16 = 0
    error_message: str | None = field("6+")
    group_id: str = ""
    group_state: str = ""
    protocol_type: str = ""
    protocol_data: str = ""
    members: list[DescribedGroupMember] = []
    authorized_operations: Int32 = field("3+", default=-(2**31))


@message("0-6", flexible=5)
class Response:
    throttle_time_ms: Int32 = field("1+")
    groups: list[DescribedGroup] = []
