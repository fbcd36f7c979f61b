"""ListGroups (16): returns the groups that this broker coordinates, filtered by state and type."""

from kpybroker.wire.codec.message import field, message, part
from kpybroker.wire.codec.primitives import Int16, Int32


@message("0-5", flexible=3)
class Request:
    states_filter: list[str] = field("4+")
    types_filter: list[str] = field("5+")


@part
class ListedGroup:
    group_id: str = ""
    protocol_type: str = ""
    group_state: str = field("4+")
    group_type: str = field("5+")


@message("0-5", flexible=3)
class Response:
    throttle_time_ms: Int32 = field("1+")
    error_code: Int16 = 0
    groups: list[ListedGroup] = []
