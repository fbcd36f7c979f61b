"""DeleteGroups (42): deletes groups that have no members."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import Int16, Int32


@message("0-2", flexible=2)
class Request:
    groups_names: list[str] = []


@part
class DeletableGroupResult:
    group_id: str = ""
    error_code: Int16 = 0


@message("0-2", flexible=2)
class Response:
    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = []
