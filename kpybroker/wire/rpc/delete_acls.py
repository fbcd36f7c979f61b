"""DeleteAcls (31): removes the access control entries that match filters (KIP-140, KIP-290)."""

from kpybroker.wire.codec.message import message, part
from kpybroker.wire.codec.primitives import Int8, Int16, Int32


@part
class DeleteAclsFilter:
    resource_type_filter: Int8 = 0
    resource_name_filter: str | None = ""
    pattern_type_filter: Int8 = 3
    principal_filter: str | None = ""
    host_filter: str | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@message("1-3", flexible=2)
class Request:
    filters: list[DeleteAclsFilter] = []


@part
class DeleteAclsMatchingAcl:
    error_code: Int16 = 0
    error_message: str | None = ""
    resource_type: Int8 = 0
    resource_name: str = ""
    pattern_type: Int8 = 3
    principal: str = ""
    host: str = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@part
class DeleteAclsFilterResult:
    error_code: Int16 = 0
    error_message: str | None = ""
    matching_acls: list[DeleteAclsMatchingAcl] = []


@message("1-3", flexible=2)
class Response:
    throttle_time_ms: Int32 = 0
    filter_results: list[DeleteAclsFilterResult] = []
