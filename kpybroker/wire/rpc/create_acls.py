"""CreateAcls (30): adds access control entries (KIP-140, KIP-290)."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32


@part
class AclCreation:
    resource_type: Int8 = 0
    resource_name: str = ""
    resource_pattern_type: Int8 = 3
    principal: str = ""
    host: str = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@message("1-3", flexible=2)
class Request:
    creations: list[AclCreation] = []


@part
class AclCreationResult:
    error_code: Int16 = 0
    error_message: str | None = ""


@message("1-3", flexible=2)
class Response:
    throttle_time_ms: Int32 = 0
    results: list[AclCreationResult] = []
